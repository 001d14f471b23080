/* The watchdog of a group: a thread that sees whether the collectives on the device make progress,
 * whether the peers live, and NCCL's own errors. It makes no call of CUDA: so it disturbs no
 * capture, and does not hang if the driver does. */
#ifndef MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_WATCH_H
#define MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_WATCH_H

#include "dist/backends/nccl/nccl_comm.h"
#include "dist/backends/nccl/nccl_kernels.h"

#include <stdbool.h>

typedef struct nccl_watch nccl_watch;

typedef struct nccl_watch_options {
    nccl_comm *comm;
    const nccl_progress *progress; /* on the host */
    first_cause *cause;
    int64_t timeout_ms;                  /* of a collective, from when the device enters it; longer
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

/* While `waits`, a dead peer is a failure even if the device has entered no collective: the host
 * waits for it. */
void nccl_watch_host_waits(nccl_watch *watch, bool waits);

#endif
