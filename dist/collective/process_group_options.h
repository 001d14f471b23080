/* What a process group is made from. */
#ifndef MNIST_DDP_DIST_COLLECTIVE_PROCESS_GROUP_OPTIONS_H
#define MNIST_DDP_DIST_COLLECTIVE_PROCESS_GROUP_OPTIONS_H

#include "base/status.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct store;     /* dist/store/store.h */
struct local_hub; /* dist/backends/local/backend_local.h */

/* What --debug says, as TORCH_DISTRIBUTED_DEBUG. */
typedef enum process_group_debug {
    PROCESS_GROUP_DEBUG_OFF,
    PROCESS_GROUP_DEBUG_INFO,   /* more lines in the log */
    PROCESS_GROUP_DEBUG_DETAIL, /* and before each collective the ranks compare their arguments, in
                                   the store: launching one then blocks until all have */
} process_group_debug;

/* All that is borrowed lives until the group is destroyed. */
typedef struct process_group_options {
    /* "shm", "gloo", "mpi", "nccl", "hierarchical" (shm on each host, gloo between them), or
     * "auto": nccl if every rank has a GPU of its own, else shm if all are on one host, else
     * hierarchical if any share one, else gloo. "local": threads of this process that meet at
     * `hub`. */
    const char *backend;
    int rank, world_size;
    struct store *store;   /* borrowed; NULL only if world_size is 1, or with `hub` */
    const char *prefix;    /* where the group's keys are in the store, ending in '/', and no other
                              group's; only read during create; NULL: at a place of its own */
    struct local_hub *hub; /* borrowed; for "local" only */

    /* Ranks with the same text are on one host, whatever the machine says: for tests, on one
     * machine. One word; borrowed; NULL: found out. */
    const char *host;

    /* The store's host, only to find this host's address on the way there; NULL: loopback. */
    const char *master_addr;

    /* Of every collective. With an accelerator, PROCESS_GROUP_FIRST_TIMES as long for making the
     * group, and for the first collective of a kind, size and root: before those each rank pages in
     * gigabytes of libraries and loads kernels, and one may be much slower than others. A rank that
     * has died or is stopped is reported as early as otherwise. */
    int64_t timeout_ms;

    /* What process_group_alloc can hand out. What is left of it when the first collective is staged
     * becomes staging memory. */
    size_t shared_bytes;

    /* Whose memory collectives with a stream work on; borrowed; NULL: host memory only. */
    struct device *device;

    /* Of nccl: called once, by a thread of the group, whose message says what broke it. This rank
     * has made no call of the group for 10 s since, so it hangs in the driver, and only the
     * process's end frees it. Must take no lock of the group. NULL: no such call. */
    void (*stuck)(void *ctx, status st);
    void *stuck_ctx;

    /* Of nccl: many collectives will be in no graph. The caller then enqueues them itself, and NCCL
     * makes no thread for each; a second communicator is opened for it. The same on all ranks. */
    bool eager;

    /* Of nccl: set to 1 before collectives that are under way on the device are aborted: what they
     * leave there may be anything. Host memory that the device reads, too. NULL: nobody looks. */
    uint32_t *aborted;

    /* Every all_reduce takes at least this much longer, as on a slow network: for demonstrations
     * and tests. */
    int64_t inject_delay_ms;

    process_group_debug debug;

    /* The rank's status page: kept up to date with what is launched and waited for; borrowed; NULL:
     * none. */
    struct rank_status *page;

    /* Of base/trace.h, TRACE_OVERLAPPING: gets every collective from its launch to its end;
     * borrowed; NULL: no trace. */
    struct trace_lane *lane;
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
