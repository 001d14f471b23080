/* Threads: how they start, which cores they keep to, and teams that share work. */
#ifndef MNIST_DDP_BASE_THREAD_H
#define MNIST_DDP_BASE_THREAD_H

#include "base/status.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Threads that block all signals: those are for the threads that expect them. */

/* Starts run(arg) on a thread of its own, all signals blocked; the caller joins it.
 * STATUS_NO_MEMORY if the system has no thread left; then *out is not set. `name` ("the store's")
 * is for the text. */
status thread_start(void *(*run)(void *), void *arg, const char *name, pthread_t *out);

/* The same for threads that a library starts: they inherit what is blocked in between. */
void thread_block_signals(sigset_t *before);
void thread_restore_signals(const sigset_t *before);

/* STATUS_INVALID, with what to do, if the system gives threads too little stack for the arithmetic:
 * a thread that needs more ends the process without a word. */
status thread_check_stack(void);

/* The processor's cores: which of them this process may use, and which a thread keeps to.
 *
 * A core's number is the system's number of a hardware thread; a core may have several of those.
 */

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

/* A fixed team of threads that share the pieces of one job after another.
 *
 * A job is cut into pieces by its shape alone, never by the number of threads, and no piece reads
 * what another one writes: so a team of any size leaves the same bits.
 */

typedef struct team team;
struct trace; /* base/trace.h */
struct trace_lane;

/* Does piece `piece` of the job. */
typedef void (*team_fn)(void *arg, int piece);

/* Starts `threads` - 1 threads (threads >= 1); the caller of team_run is the last member.
 * STATUS_NO_MEMORY if a thread cannot be started. */
status team_create(int threads, team **out);

/* Ends and joins the threads. Accepts NULL. */
void team_destroy(team *team);

/* Calls fn(arg, 0) ... fn(arg, pieces - 1), shared out over the members; returns when all are done.
 * One caller at a time. */
void team_run(team *team, team_fn fn, void *arg, int pieces);

/* From now on each of the started threads notes in a lane of `t`, "compute 1 of main" and on, which
 * pieces it did: named as what the caller of team_run does just then in `caller`, the lane of its
 * thread. Call before team_run. */
status team_trace(team *team, struct trace *t, struct trace_lane *caller);

/* Member i, one of the started threads, from now on runs on cores->ids[i] alone. There are as many
 * as members. */
void team_bind(team *team, const struct cores *cores);

int team_threads(const team *team);

/* Inside a piece: which member (0 .. threads-1) does it; for scratch memory, never for results. */
int team_member(void);

#ifdef __cplusplus
}
#endif
#endif
