/* The processor's cores: which of them this process may use, and which a thread keeps to.
 *
 * A core's number is the system's number of a hardware thread; a core may have several of those.
 */
#ifndef MNIST_DDP_BASE_CORES_H
#define MNIST_DDP_BASE_CORES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { CORES_MAX = 1024 };

typedef struct cores {
    int n;
    int16_t ids[CORES_MAX];
} cores;

/* This process is the index-th of `count` that may use the same cores. */
typedef struct cores_peers {
    int index, count;
} cores_peers;

/* The same number in processes of a running kernel that may use the same hardware threads; 0: not
 * known. */
uint64_t cores_number(void);

/* How many hardware threads this process may use, by taskset, cpuset or cores_bind; at least 1. */
int cores_count(void);

/* Those of them for `need` threads that are to run side by side: one hardware thread of each core
 * if these are enough, else all of them. Processor packages follow each other, and the hardware
 * threads of a core. n is 0 if there are fewer than `need`. */
void cores_list(int need, cores *out);

/* The part-th of `parts` contiguous shares of `all`, which differ by one core at most. */
void cores_share(const cores *all, int part, int parts, cores *out);

/* From now on the thread, and threads that it starts, run on some of these. false: the system does
 * not allow it, and nothing has changed. */
bool cores_bind(pthread_t thread, const int16_t *ids, int n);

/* All threads of this process, those of libraries too, run on some of these. */
void cores_bind_process(const cores *all);

#endif
