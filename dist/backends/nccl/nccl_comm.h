/* NCCL's calls, a communicator that never blocks for ever, and the watchdog of both. */
#ifndef MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_COMM_H
#define MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_COMM_H

#include "base/status.h"
#include "dist/backends/nccl/nccl_kernels.h"
#include "dist/health/first_cause.h"

#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* Each call of NCCL becomes a status: the call, its error, and NCCL's own words. */

/* TRY(NCCL_CALL(ncclCommAbort(comm))). A call that goes on in the background is STATUS_OK: see
 * nccl_comm_settle. STATUS_PEER if NCCL blames a peer, STATUS_IO for the system or the network,
 * STATUS_INVALID for wrong use, else STATUS_DEVICE. */
#define NCCL_CALL(call) nccl_call_status((call), #call, __FILE__, __LINE__)

status nccl_call_status(ncclResult_t code, const char *call, const char *file, int line);

/* The library's version, as "2.28.9"; "" if it does not tell. */
void nccl_call_version(char *out, size_t size_bytes);

/* The communicator. Unless it is eager it does not block the host: NCCL works in the background, in
 * a thread that it makes for each call, and whoever calls it asks again until it has settled.
 *
 * An eager one's calls are done when they return. One that waits for a peer cannot be aborted: that
 * would free what it uses. So it has a parent that does not block and is in no call, and was split
 * so that both have one flag to abort by: aborting the parent ends the call, and frees none of
 * this. It also gives the making of both a deadline. */

typedef struct nccl_comm {
    ncclComm_t handle;    /* NULL: none */
    ncclComm_t parent;    /* an eager one's; NULL: it is not, or interrupted */
    pthread_mutex_t lock; /* held through every call of NCCL and until it has settled: NCCL tidies
                             up after its own threads when it is asked for its state */
    uint32_t *aborted;    /* process_group_options.h */
} nccl_comm;

/* Asked again and again by whoever waits: STATUS_OK, or why to give up. */
typedef struct nccl_ask {
    status (*fn)(void *ctx);
    void *ctx;
} nccl_ask;

void nccl_comm_init(nccl_comm *comm); /* none yet; closed by nccl_comm_close */

/* Joins all ranks, which have met (first_cause_create), in one communicator on the current GPU.
 * STATUS_TIMEOUT at the deadline; STATUS_PEER if one has ended; another rank's failure ends it as
 * well. *comm may be set also on failure: it is the caller's to close. */
status nccl_comm_open(nccl_comm *comm, const group_setup *setup, first_cause *cause,
                      int64_t deadline_ns);

/* Returns when NCCL has done in the background what `call` began, with its result; STATUS_TIMEOUT
 * at the deadline. The lock is held. */
status nccl_comm_settle(nccl_comm *comm, const char *call, int64_t deadline_ns,
                        const nccl_ask *ask);

/* Ends a call of an eager communicator that waits in another thread; it fails. Afterwards there is
 * only nccl_comm_close. */
void nccl_comm_interrupt(nccl_comm *comm);

/* well: all that was enqueued is done or will be, so that it may take its leave of the peers, for a
 * few seconds; else it is aborted, and kernels that wait for peers end. */
void nccl_comm_close(nccl_comm *comm, bool well);

/* The watchdog of a group: a thread that sees whether the collectives on the device make progress,
 * whether the peers live, and NCCL's own errors. It makes no call of CUDA: so it disturbs no
 * capture, and does not hang if the driver does; what interrupts a call is a thread of its own. */

typedef struct nccl_watch nccl_watch;

typedef struct nccl_watch_options {
    nccl_comm *comm;
    const nccl_progress *progress; /* on the host */
    first_cause *cause;
    int64_t timeout_ms;                  /* a collective's, from when the device enters it; longer
                                            for the first of its kind:
                                            process_group_options.h */
    void (*stuck)(void *ctx, status st); /* process_group_options.h */
    void *stuck_ctx;
} nccl_watch_options;

/* Borrows all that the options name. */
status nccl_watch_create(const nccl_watch_options *options, nccl_watch **out);
void nccl_watch_destroy(nccl_watch *watch); /* accepts NULL */

/* STATUS_OK, or what broke the group, the same from then on: STATUS_TIMEOUT if a collective runs
 * too long, STATUS_PEER if a rank is gone that one waits for, or NCCL's own error; with the
 * collective. Never blocks. An nccl_ask's function: `watch` is an nccl_watch. */
status nccl_watch_check(void *watch);

/* The same for a destroyer, which keeps this thread's message: `words` gets the failure's text. */
status nccl_watch_read(nccl_watch *watch, char *words, size_t size_bytes);

/* Breaks the group, from any thread; the peers hear why. */
void nccl_watch_abort(nccl_watch *watch, const char *why);

/* NCCL failed with `st`, and its words are this thread's message: adds who is to blame for it, if
 * that can be seen. Returns st. */
status nccl_watch_blame(const nccl_watch *watch, status st);

/* Around a call of NCCL. Meanwhile a dead peer is a failure even if the device has entered no
 * collective: the host waits for it. A call of an eager communicator is interrupted if the group is
 * broken, or after `timeout_ms`. Both return what has broken the group: then no call may begin. */
status nccl_watch_enter(nccl_watch *watch, int64_t timeout_ms);
status nccl_watch_leave(nccl_watch *watch);

#endif
