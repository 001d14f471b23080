/* Collectives among the ranks of a job: the checked front door to all backends. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_H
#define MNIST_DDP_DIST_PROCESS_GROUP_H

#include "base/status.h"
#include "dist/store/store.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct process_group process_group;
typedef struct work work;                   /* a collective under way */
typedef struct device_stream device_stream; /* kernels/device.h */
struct device;
struct local_hub;

typedef enum dtype { DTYPE_F32, DTYPE_F64, DTYPE_I64 } dtype;
typedef enum reduce_op { REDUCE_SUM, REDUCE_MIN, REDUCE_MAX } reduce_op;

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
    struct rank_page *page;  /* kept up to date with what is launched and waited for; borrowed until
                                destroy; NULL: none */
    struct trace_lane *lane; /* of base/trace.h, TRACE_OVERLAPPING: gets every collective from its
                                launch to its end; borrowed until destroy; NULL: no trace */
} process_group_options;

enum { PROCESS_GROUP_FIRST_TIMES = 10 };

/* The longer one of the two timeouts, where it applies. */
int64_t process_group_patience_ms(const process_group_options *options);

/* Blocks until all ranks have created theirs, at most process_group_patience_ms(options). */
status process_group_create(const process_group_options *options, process_group **out);

/* Accepts NULL. Peers that still wait in a collective fail with STATUS_PEER. Does not wait for
 * peers, but on gloo up to 2 s each for a last barrier and a goodbye through the store while all
 * are well: gloo loses data that is under way when its sockets close; and on nccl up to 3 s each
 * for NCCL's own goodbye and for the device to run empty. Works not waited for are dropped. Graphs
 * that hold collectives must be gone. */
void process_group_destroy(process_group *group);

int process_group_rank(const process_group *group);
int process_group_world_size(const process_group *group);
const char *process_group_backend(const process_group *group); /* "none" for one rank */

/* All ranks share host, network and process namespace, and user, and so a clock. */
bool process_group_is_on_one_host(const process_group *group);

/* Bytes that this rank has sent to others and got from them, by what the backend's algorithm moves
 * in the collectives launched so far. (nccl: nominal. Replays of a recorded graph do not count.)
 * May be called from any thread. */
void process_group_traffic(process_group *group, uint64_t *sent, uint64_t *received);

/* Whether collectives on the device's stream may be recorded in a graph (accelerator_ops in
 * kernels/ops.h): true for one rank and for backends that take device memory. */
bool process_group_can_be_captured(const process_group *group);

/* STATUS_OK, or why the group broke: also what a backend finds out in the background, as that a
 * collective enqueued on a device hangs or that its peer died. Never blocks. */
status process_group_check(process_group *group);

/* The last 1000 collectives as JSON, one a line, the oldest first: number, kind, op, dtype, count,
 * bytes, what it carries, how far it got, and when on the clock of base/clock.h. Always kept. One
 * that is replayed with a recorded graph was noted when it was recorded. May be called from any
 * thread. */
void process_group_write_ring(process_group *group, FILE *file);

/* Zeroed host memory, aligned to 64 bytes, that belongs to the group until it is destroyed. Every
 * rank asks for the same sizes in the same order; collectives on such memory need no copies where
 * the backend can read its peers' (shm). */
status process_group_alloc(process_group *group, size_t size_bytes, void **out);

/* For all collectives: `stream` NULL: arrays are host memory. Else it is the device's stream,
 * arrays are device memory, and the collective comes behind the work enqueued there so far; where a
 * backend takes host memory only, they are staged through pinned host memory. Ranks issue the same
 * collectives in the same order. prescale must be 1 for DTYPE_I64, whose sums wrap. Sums are taken
 * in an order fixed by rank and position: same inputs, same bits, on every rank; for the extremes
 * of NaN the order is as fixed. (nccl: the same bits on every rank, in an order of NCCL's choice.)
 */

/* What a reduction over ranks reads and sets. */
typedef struct reduction {
    const void *in; /* count elements of type, unless said otherwise; may equal out */
    void *out;
    size_t count;
    dtype type;
    reduce_op op;
    float prescale; /* every element is multiplied by it on the way in; 1: none */
} reduction;

/* Starts out[i] = reduction over ranks of prescale * in[i]. The works of a group must be waited for
 * once each, in the order of their launch; until then in and out belong to the collective. */
status process_group_all_reduce_async(process_group *group, const reduction *what,
                                      device_stream *stream, work **out_work);

/* Host memory: blocks until the collective is done, at most the group's timeout. Device memory:
 * what is enqueued on the stream from now on finds it done; blocks only where it was staged. The
 * timeout of a collective that runs on the device counts while it runs and shows in
 * process_group_check. Consumes the work, also on failure. A failure breaks the group for good:
 * STATUS_TIMEOUT or STATUS_PEER with the rank, the collective's kind and number. *elapsed_ns,
 * unless NULL: from launch to done; 0 where that is not known to the host. */
status process_group_wait(process_group *group, work *w, int64_t *elapsed_ns);

/* Launch and wait. STATUS_INVALID while works are still to be waited for. */
status process_group_all_reduce(process_group *group, void *data, size_t count, dtype type,
                                reduce_op op, device_stream *stream);
status process_group_broadcast(process_group *group, void *data, size_t count, dtype type, int root,
                               device_stream *stream);
status process_group_barrier(process_group *group); /* the host blocks */

/* Sets what->out on the root only. */
status process_group_reduce(process_group *group, const reduction *what, int root,
                            device_stream *stream);

/* Not of every backend: one that cannot do them refuses them by name. */
/* in (count) of rank r -> out (world_size, count) row r, on all ranks. */
status process_group_all_gather(process_group *group, const void *in, void *out, size_t count,
                                dtype type, device_stream *stream);
/* in (world_size, count): the reduction of row r over ranks -> out (count) of rank r. */
status process_group_reduce_scatter(process_group *group, const reduction *what,
                                    device_stream *stream);
status process_group_send(process_group *group, const void *data, size_t count, dtype type,
                          int peer, device_stream *stream);
status process_group_recv(process_group *group, void *data, size_t count, dtype type, int peer,
                          device_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
