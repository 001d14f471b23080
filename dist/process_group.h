/* Collectives among the ranks of a job: the checked front door to all backends. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_H
#define MNIST_DDP_DIST_PROCESS_GROUP_H

#include "base/status.h"
#include "dist/store/store.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct process_group process_group;
typedef struct work work; /* a collective under way */
typedef struct device_stream device_stream;

typedef enum dtype { DTYPE_F32, DTYPE_F64, DTYPE_I64 } dtype;
typedef enum reduce_op { REDUCE_SUM, REDUCE_MIN, REDUCE_MAX } reduce_op;

typedef struct process_group_options {
    const char
        *backend; /* "shm", "gloo" or "auto": shm where all ranks are on one host, else gloo */
    int rank, world_size;
    struct store *store;     /* borrowed until destroy; NULL only where world_size is 1 */
    const char *master_addr; /* the store's host, only to find this host's address on the way there;
                                NULL: loopback */
    int64_t timeout_ms;      /* of every collective */
    size_t shared_bytes;     /* what process_group_alloc can hand out */
    int64_t inject_delay_ms; /* every all_reduce takes at least this much longer, as on a slow
                                network: for demonstrations and tests */
} process_group_options;

/* Blocks until all ranks have created theirs, at most timeout_ms. */
status process_group_create(const process_group_options *options, process_group **out);

/* Accepts NULL. Peers that still wait in a collective fail with STATUS_PEER. Does not wait for
 * peers, but on gloo up to 2 s each for a last barrier and a goodbye through the store while all
 * are well: gloo loses data that is under way when its sockets close. Works not waited for are
 * dropped. */
void process_group_destroy(process_group *group);

int process_group_rank(const process_group *group);
int process_group_world_size(const process_group *group);
const char *process_group_backend(const process_group *group); /* "none" for one rank */

/* Zeroed memory, aligned to 64 bytes, that belongs to the group until it is destroyed. Every rank
 * asks for the same sizes in the same order; collectives on such memory need no copies where the
 * backend can read its peers' (shm). */
status process_group_alloc(process_group *group, size_t size_bytes, void **out);

/* Starts out[i] = reduction over ranks of prescale * in[i]; in may equal out; host memory on
 * `stream` NULL. Ranks issue the same collectives in the same order. Sums are taken in an order
 * fixed by rank and position: same inputs, same bits, on every rank; for the extremes of NaN the
 * order is as fixed. prescale must be 1 for DTYPE_I64, whose sums wrap. The works of a group must
 * be waited for once each, in the order of their launch; until then in and out belong to the
 * collective. */
status process_group_all_reduce_async(process_group *group, const void *in, void *out, size_t count,
                                      dtype type, reduce_op op, float prescale,
                                      device_stream *stream, work **out_work);

/* Blocks until the collective is done, at most the group's timeout. Consumes the work, also on
 * failure. A failure breaks the group for good: STATUS_TIMEOUT or STATUS_PEER with the rank, the
 * collective's kind and number. *elapsed_ns, unless NULL: from launch to done. */
status process_group_wait(process_group *group, work *w, int64_t *elapsed_ns);

/* Blocking calls: launch and wait. STATUS_INVALID while works are still to be waited for. */
status process_group_all_reduce(process_group *group, void *data, size_t count, dtype type,
                                reduce_op op);
status process_group_broadcast(process_group *group, void *data, size_t count, dtype type,
                               int root);
status process_group_barrier(process_group *group);

#ifdef __cplusplus
}
#endif
#endif
