/* What a process group is made from. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_OPTIONS_H
#define MNIST_DDP_DIST_PROCESS_GROUP_OPTIONS_H

#include "base/status.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct store;     /* dist/store/store.h */
struct local_hub; /* dist/local/local_hub.h */

typedef struct process_group_options {
    const char *backend; /* "shm", "gloo", "nccl", or "auto": nccl where every rank has a GPU of its
                            own, else shm where all are on one host, else gloo; "local": threads of
                            this process that meet at `hub` */
    int rank, world_size;
    struct store
        *store; /* borrowed until destroy; NULL only where world_size is 1, or with `hub` */
    struct local_hub *hub;   /* dist/local/local_hub.h, for "local" only; borrowed until destroy */
    const char *master_addr; /* the store's host, only to find this host's address on the way there;
                                NULL: loopback */
    int64_t timeout_ms;      /* of every collective. With an accelerator, PROCESS_GROUP_FIRST_TIMES
                                as long for making the group, and for the first one of a kind, size
                                and root: on the way there each rank pages in libraries of
                                gigabytes and loads kernels, and one may be much slower than others.
                                Ranks that have died or stopped are told as soon as ever */
    size_t shared_bytes;     /* what process_group_alloc can hand out; what is left of it when a
                                collective is first staged serves for that from then on */
    struct device *device;   /* whose memory collectives with a stream work on; borrowed until
                                destroy; NULL: host memory only */
    void (*stuck)(void *ctx, status st); /* of nccl; called once, by a thread of the group, whose
                                            message says what broke it: this rank has not asked for
                                            10 s, so it hangs in the driver, and only the process's
                                            end frees it. May take no lock of the group. NULL: no
                                            such call */
    void *stuck_ctx;
    int64_t inject_delay_ms; /* every all_reduce takes at least this much longer, as on a slow
                                network: for demonstrations and tests */
    struct rank_page *page;  /* kept up to date with what is launched and waited for; borrowed
                                until destroy; NULL: none */
    struct trace_lane *lane; /* of base/trace.h, TRACE_OVERLAPPING: gets every collective from its
                                launch to its end; borrowed until destroy; NULL: no trace */
} process_group_options;

enum { PROCESS_GROUP_FIRST_TIMES = 10 };

/* The longer one of the two timeouts, if it applies. */
static inline int64_t process_group_patience_ms(const process_group_options *o)
{
    bool accelerated = o->device != NULL && o->device->stream != NULL;
    return o->timeout_ms * (accelerated ? PROCESS_GROUP_FIRST_TIMES : 1);
}

#ifdef __cplusplus
}
#endif
#endif
