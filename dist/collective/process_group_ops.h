/* What a backend implements. Callers include dist/process_group/process_group.h instead. */
#ifndef MNIST_DDP_DIST_COLLECTIVE_PROCESS_GROUP_OPS_H
#define MNIST_DDP_DIST_COLLECTIVE_PROCESS_GROUP_OPS_H

#include "dist/collective/collective.h"
#include "dist/collective/process_group_options.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct device_stream device_stream; /* kernels/device.h */

/* What a backend's create gets. */
enum { PROCESS_GROUP_PREFIX_BYTES = 64 };

struct process_group_ops;

typedef struct group_setup {
    const process_group_options *options; /* valid only during create */
    const char *prefix; /* its keys in the store begin so, "pg/3/"; valid only during create */
    bool one_host;      /* all ranks share host, network and process namespace, and user */

    /* Of hierarchical; valid only during create. */
    const int *hosts; /* (world_size): each rank's host; they are numbered by their lowest rank */
    const struct process_group_ops *between; /* what connects hosts */
} group_setup;

/* Arguments arrive checked; world_size > 1.
 *
 * launch() starts after the work already on `stream` (NULL: host memory, starts at once) and may be
 * called again before the first is done. A kind that a backend cannot do is STATUS_INVALID, by
 * name.
 *
 * wait() of a work with a stream orders that stream after it and does not block the host. Else it
 * returns when the result is in place, or STATUS_TIMEOUT at the deadline, after which only
 * destroy() may be called. Works are waited for in the order of their launch, by one thread at a
 * time; launch() may be called from another thread meanwhile.
 *
 * nccl's wait() on host memory is an exception: it ignores the deadline, as the device may have
 * other work to do before the collective. That work has no deadline, but a broken group ends the
 * wait. The collective's own timeout, and 1.5 s more, count from when the device comes to it.
 *
 * Messages say what went wrong with which peer. process_group.c puts the collective, the rank and
 * the backend before them. */
typedef struct process_group_ops {
    const char *name;   /* as --backend spells it */
    bool device_memory; /* takes a stream and device memory; false: host memory only */
    bool works_in_wait; /* launch() announces, after a copy at most: nothing moves beside the
                           caller's own work */
    status (*create)(const group_setup *setup, void **self);
    status (*launch)(void *self, const collective *c, device_stream *stream, void **out_work);
    /* Consumes out_work, also on failure. *done_ns: when the result was in place. */
    status (*wait)(void *self, void *w, int64_t deadline_ns, int64_t *done_ns);
    /* The sends and receives launched between the two calls are a batch, none of which waits for
     * another. NULL: they never do. */
    status (*batch)(void *self, bool begins);
    /* As process_group_check, without blocking. NULL: nothing to find out. */
    status (*check)(void *self);
    /* Memory as in process_group_alloc. NULL: process_group.c makes it. */
    status (*alloc)(void *self, size_t size_bytes, void **out);
    /* From any thread, once, while others are in launch() or wait(): a wait that goes on, and all
     * that come, fail within 50 ms; where a peer copies this rank's memory, after that copy,
     * 10 s at most. Does not block. `why` is for the peers, if they are told. */
    void (*abort)(void *self, const char *why);
    /* Also after a failure, and with works not waited for, which it frees. */
    void (*destroy)(void *self);
    /* What a collective moves on rank `rank`, by the backend's algorithm. */
    rank_traffic (*traffic)(const collective *c, int rank, int world_size);
    /* Of the library it calls, "2.28.9". NULL: it gives none. */
    void (*version)(char *out, size_t size_bytes);
} process_group_ops;

extern const process_group_ops shm_ops, local_ops, hierarchical_ops;

#ifdef __cplusplus
}
#endif
#endif
