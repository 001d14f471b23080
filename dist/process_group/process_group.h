/* Collectives among the ranks of a job, on any backend. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_PROCESS_GROUP_H
#define MNIST_DDP_DIST_PROCESS_GROUP_PROCESS_GROUP_H

#include "base/status.h"
#include "dist/collective/collective.h"
#include "dist/collective/process_group_options.h"

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

/* Blocks until all ranks have created theirs, at most process_group_patience_ms(options). */
status process_group_create(const process_group_options *options, process_group **out);

/* Accepts NULL. Peers that still wait in a collective fail with STATUS_PEER. Does not wait for
 * peers, with three exceptions if nothing has failed. gloo: up to 2 s each for a last barrier and a
 * goodbye through the store, as gloo loses data under way when its sockets close. mpi: up to 2 s
 * for a last barrier, after which the process may end MPI when it exits. nccl: up to 3 s each for
 * ncclCommFinalize and for the device's work to end. Works not waited for are dropped. Graphs that
 * hold collectives must be gone. */
void process_group_destroy(process_group *group);

int process_group_rank(const process_group *group);
int process_group_world_size(const process_group *group);
const char *process_group_backend(const process_group *group); /* "none" for one rank */

/* A hash of which ranks share a host; 0: there is one. */
uint64_t process_group_hosts(const process_group *group);

/* All ranks share host, network and process namespace, and user, and so a clock. */
bool process_group_is_on_one_host(const process_group *group);

/* Bytes that this rank has sent to others and got from them, by what the backend's algorithm moves
 * in the collectives launched so far. (nccl: nominal. Replays of a recorded graph do not count.)
 * May be called from any thread. */
void process_group_traffic(process_group *group, uint64_t *sent, uint64_t *received);

/* The same of one collective before it is launched; sets of *c: kind, count, type and root. */
rank_traffic process_group_expect_traffic(const process_group *group, const collective *c);

/* Whether collectives on the device's stream may be recorded in a graph (accelerator_ops in
 * kernels/ops.h): true for one rank and for backends that take device memory. */
bool process_group_can_be_captured(const process_group *group);

/* Breaks the group from any thread, as ncclCommAbort: whoever waits in a collective fails within
 * 50 ms with STATUS_PEER and `why`, as do all collectives after it. Does not wait for that, and the
 * group is to be destroyed as ever. Does nothing if the group is broken already. */
void process_group_abort(process_group *group, const char *why);

/* STATUS_OK, or why the group broke: also what a backend finds out in the background, as that a
 * collective enqueued on a device hangs or that its peer died. Never blocks. */
status process_group_check(process_group *group);

/* The last 1000 collectives as JSON, one a line, the oldest first: number, kind, op, dtype, count,
 * bytes, what it carries, how far it got, and when on the clock of base/clock.h. Always kept. One
 * that is replayed with a recorded graph was noted when it was recorded. May be called from any
 * thread. */
void process_group_write_flight_record(process_group *group, FILE *file);

/* Zeroed host memory, aligned to 64 bytes, that belongs to the group until it is destroyed. Every
 * rank asks for the same sizes in the same order; collectives on such memory need no copies if the
 * backend can read its peers' (shm). */
status process_group_alloc(process_group *group, size_t size_bytes, void **out);

/* For all collectives: if `stream` is NULL, arrays are host memory. Else it is the device's stream,
 * arrays are device memory, and the collective comes after the work enqueued there so far; if the
 * backend takes host memory only, they are staged through pinned host memory. Ranks issue the same
 * collectives in the same order. prescale must be 1 for integers, which wrap. Sums are taken in an
 * order fixed by rank and position: same inputs, same bits, on every rank; for the extremes of NaN
 * the order is as fixed. (nccl, mpi: the same bits on every rank, in an order of the library's
 * choice. hierarchical: hosts in order, and the ranks of each in order.) */

/* Starts any operation: the asynchronous form of all below, as async_op=True, isend and irecv. Sets
 * of *c: kind, type, in, out, count, and where they mean something op, root (or the peer), tag,
 * prescale and label. The works of a group must be waited for once each, in the order of their
 * launch; until then in and out belong to the operation. Sends and receives may be launched in any
 * order among different peers: waiting for one moves all of this rank's on. */
status process_group_launch(process_group *group, const collective *c, device_stream *stream,
                            work **out_work);

/* Copies a label for collectives of this group: "bucket 0: fc2.weight, fc2.bias". *out lives as
 * long as the group. */
status process_group_keep_label(process_group *group, const char *text, const char **out);

/* Starts n sends and receives together, none of which waits for another, as
 * torch.distributed.batch_isend_irecv: works[0..n-1], to be waited for in this order. On failure
 * none of them is left. */
status process_group_batch_isend_irecv(process_group *group, const collective *list, int n,
                                       device_stream *stream, work **works);

/* Host memory: blocks until the collective is done, at most the group's timeout. Device memory:
 * what is enqueued on the stream from now on finds it done; blocks only if it was staged. The
 * timeout of a collective that runs on the device counts while it runs and shows in
 * process_group_check. Consumes the work, also on failure. A failure breaks the group for good:
 * STATUS_TIMEOUT or STATUS_PEER with the rank, the collective's kind and number. *elapsed_ns,
 * unless NULL: from launch to done, or from this call on with a backend that works in wait (all but
 * gloo and nccl); 0 if the host does not know that. */
status process_group_wait(process_group *group, work *w, int64_t *elapsed_ns);

/* Launch and wait: any operation, in the shapes of dist/collective/collective.h, and the usual ones
 * below. STATUS_INVALID while works are still to be waited for. */
status process_group_run(process_group *group, const collective *c, device_stream *stream);

status process_group_all_reduce(process_group *group, void *data, size_t count, dtype type,
                                reduce_op op, device_stream *stream);
status process_group_broadcast(process_group *group, void *data, size_t count, dtype type, int root,
                               device_stream *stream);
status process_group_barrier(process_group *group); /* the host blocks */

/* Through the store, not the backend: the host blocks until all ranks have come, at most
 * timeout_ms. STATUS_TIMEOUT on every rank, with the names of all that have not come; also on those
 * when they come later. Does not break the group, and works in a broken one. */
status process_group_monitored_barrier(process_group *group, int64_t timeout_ms);

/* in (count) of rank r -> out (world_size, count) row r, on all ranks. */
status process_group_all_gather(process_group *group, const void *in, void *out, size_t count,
                                dtype type, device_stream *stream);
/* Tag 0. */
status process_group_send(process_group *group, const void *data, size_t count, dtype type,
                          int peer, device_stream *stream);
status process_group_recv(process_group *group, void *data, size_t count, dtype type, int peer,
                          device_stream *stream);

/* Which ranks of a group make a sub-group. */
typedef struct sub_group {
    const int *ranks; /* (n): of the group, ascending, each once */
    int n;
    const char *backend; /* as process_group_options has it; NULL: as the group was asked for */
    size_t shared_bytes; /* what process_group_alloc can hand out */
} sub_group;

/* As torch.distributed.new_group: all ranks of `group` call it, in the same order and with the same
 * `what`. *out: the sub-group, in which rank i is what->ranks[i]; NULL on ranks that are not in it.
 * Ranks in it block until all of them are there, the others do not. It outlives `group`, but not
 * what that borrows. STATUS_INVALID if the ranks make no sense. */
status process_group_new_group(process_group *group, const sub_group *what, process_group **out);

#ifdef __cplusplus
}
#endif
#endif
