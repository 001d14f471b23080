/* Ranks side by side on one host each keep to cores of their own (--bind-to core).
 *
 * The cores that the process may use (taskset, cpuset) are cut into as many contiguous shares as
 * there are ranks of the job that may use them, and each thread of a rank that computes has a core
 * of its share that no other job of this program has. Nothing is bound if there are more such
 * threads than cores, or only one; nor a rank whose share has too few cores left. A rank whose core
 * turns out to be busy with other work gives it up.
 */
#ifndef MNIST_DDP_APP_COMMON_CORE_BINDING_H
#define MNIST_DDP_APP_COMMON_CORE_BINDING_H

#include "app/options/options.h"
#include "base/thread.h"
#include "kernels/device.h"

typedef struct core_binding {
    cores share;      /* .n is 0: this rank is not bound */
    int threads;      /* that compute: the share has a core for each */
    cores before;     /* what the process might use */
    int *claims;      /* (threads): sockets whose names say that the cores are taken */
    int delay_fd;     /* the system's account of how long the main thread was kept waiting */
    int64_t delay_ns; /* what was last read there */
    int64_t read_ns;  /* when it was read; 0: not yet */
    char note[96];    /* why the rank is not bound; "" */
} core_binding;

/* Whether so many ranks on this host, of so many threads each, have more threads than cores. Then
 * `text` says so. */
enum { CORE_BINDING_TEXT_BYTES = 128 };
bool core_binding_is_crowded(int ranks, int threads, char text[CORE_BINDING_TEXT_BYTES]);

/* Binds the calling thread, the main thread of this rank, and the device's own threads, if the
 * device computes on the host. Threads that are there already, such as a backend's, stay unbound;
 * those that the calling thread starts later are bound as it is. What keeps a rank from being bound
 * is no failure: it stands in out->note. */
void core_binding_open(const options *opts, const cores_peers *peers, device *dev,
                       core_binding *out);

/* Gives the cores up if other work uses the calling thread's. Cheap: to be called in every step. */
void core_binding_look(core_binding *binding);

/* The core of the main thread; -1: it has none. */
int core_binding_core(const core_binding *binding);

/* Accepts a zeroed one. Threads stay as they are bound. */
void core_binding_close(core_binding *binding);

#endif
