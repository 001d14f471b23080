/* Collectives by NCCL, on a stream of their own beside the device's.
 *
 *   device's stream   ... gradients ready |                | wait() ... the optimizer
 *                                         v                ^
 *   own stream                   enter, the collective, leave
 *
 * Both crossings are events, and nothing here waits for the GPU: so all of it may be captured in a
 * graph. If no event is spare one is made, which is allowed during a capture. `enter` and `leave`
 * are the small kernels of nccl_kernels.h; `enter` also scales, so that gradients are multiplied on
 * the way in as on every backend.
 *
 * Host memory passes through pinned memory and the GPU's, and wait() polls. It, too, comes after
 * the device's work so far: so all ranks have one order of collectives, in graphs or not.
 */
#include "base/clock.h"
#include "base/status.h"
#include "dist/backends/nccl/nccl_comm.h"
#include "dist/backends/nccl/nccl_kernels.h"
#include "dist/collective/collective.h"
#include "dist/collective/process_group_ops.h"
#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/cuda_state.h"
#include "kernels/device.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Which calls of NCCL an operation takes. */

typedef struct nccl_place {
    ncclComm_t comm;
    cudaStream_t stream;
    int rank, world_size;
} nccl_place;

/* gather, scatter and all_to_all are made of sends and receives of rows. NCCL 2.28 has calls for
 * them, which do the same; older releases, which serve as well, have not. */

static ncclDataType_t type_of(dtype type)
{
    static const ncclDataType_t types[DTYPE_COUNT] = {
        [DTYPE_F32] = ncclFloat32,   [DTYPE_F64] = ncclFloat64, [DTYPE_I64] = ncclInt64,
        [DTYPE_BF16] = ncclBfloat16, [DTYPE_F16] = ncclFloat16, [DTYPE_U8] = ncclUint8,
    };
    return types[type];
}

static ncclRedOp_t op_of(reduce_op op)
{
    static const ncclRedOp_t ops[REDUCE_OP_COUNT] = {
        [REDUCE_SUM] = ncclSum,   [REDUCE_MIN] = ncclMin, [REDUCE_MAX] = ncclMax,
        [REDUCE_PROD] = ncclProd, [REDUCE_AVG] = ncclAvg,
    };
    return ops[op];
}

/* STATUS_INVALID, by name, for what NCCL has not. */
static status nccl_operation_check(const collective *c)
{
    if (collective_is_send_or_recv(c->kind) && c->tag != 0)
        return FAIL(STATUS_INVALID,
                    "backend nccl has no tags: messages between two ranks come in the order in "
                    "which they are sent (tag %d, want 0)",
                    c->tag);
    return STATUS_OK;
}

/* Which rows this rank sends to a peer and gets from it. */
typedef struct row_moves {
    bool sends, gets;
    const char *from;
    char *to;
} row_moves;

static row_moves moves_of(const nccl_place *place, const collective *c, int peer)
{
    size_t at = c->count * dtype_size(c->type) * (size_t)peer;
    row_moves all = {true, true, (const char *)c->in + at, (char *)c->out + at};
    if (c->kind == COLLECTIVE_GATHER)
        return (row_moves){peer == c->root, place->rank == c->root, c->in, all.to};
    if (c->kind == COLLECTIVE_SCATTER)
        return (row_moves){place->rank == c->root, peer == c->root, all.from, c->out};
    return all;
}

/* A row of its own goes through NCCL too, unless it is in its place. */
static ncclResult_t move_rows(const nccl_place *place, const collective *c)
{
    ncclDataType_t type = type_of(c->type);
    for (int peer = 0; peer < place->world_size; peer++) {
        row_moves row = moves_of(place, c, peer);
        ncclResult_t result = ncclSuccess;
        if (peer == place->rank && row.from == row.to)
            continue;
        if (row.sends)
            result = ncclSend(row.from, c->count, type, peer, place->comm, place->stream);
        if (row.gets && (result == ncclSuccess || result == ncclInProgress))
            result = ncclRecv(row.to, c->count, type, peer, place->comm, place->stream);
        if (result != ncclSuccess && result != ncclInProgress)
            return result;
    }
    return ncclSuccess;
}

/* Issues the calls for *c, on device memory and not scaled, between ncclGroupStart and
 * ncclGroupEnd: gather, scatter and all_to_all are several. all_to_all is not in place.
 * A barrier is an all_reduce of one number. */
static ncclResult_t nccl_operation_issue(const nccl_place *place, const collective *c)
{
    ncclComm_t comm = place->comm;
    cudaStream_t stream = place->stream;
    ncclDataType_t type = type_of(c->type);
    ncclRedOp_t op = op_of(c->op);
    switch (c->kind) {
    case COLLECTIVE_ALL_REDUCE:
        return ncclAllReduce(c->in, c->out, c->count, type, op, comm, stream);
    case COLLECTIVE_BARRIER:
        return ncclAllReduce(c->in, c->out, 1, ncclFloat32, ncclSum, comm, stream);
    case COLLECTIVE_BROADCAST:
        return ncclBroadcast(c->in, c->out, c->count, type, c->root, comm, stream);
    case COLLECTIVE_REDUCE:
        return ncclReduce(c->in, c->out, c->count, type, op, c->root, comm, stream);
    case COLLECTIVE_ALL_GATHER:
        return ncclAllGather(c->in, c->out, c->count, type, comm, stream);
    case COLLECTIVE_REDUCE_SCATTER:
        return ncclReduceScatter(c->in, c->out, c->count, type, op, comm, stream);
    case COLLECTIVE_GATHER:
    case COLLECTIVE_SCATTER:
    case COLLECTIVE_ALL_TO_ALL:
        return move_rows(place, c);
    case COLLECTIVE_SEND:
        return ncclSend(c->in, c->count, type, c->root, comm, stream);
    case COLLECTIVE_RECV:
        return ncclRecv(c->out, c->count, type, c->root, comm, stream);
    case COLLECTIVE_KIND_COUNT:
        break;
    }
    return ncclInvalidArgument;
}

/* A group and its works: how they are put on the group's own stream. */

/* Memory through which collectives on host memory pass: a pinned piece, for the copies, and a piece
 * of the GPU's, for NCCL. */
typedef struct nccl_chunk nccl_chunk;

typedef struct nccl_staging {
    nccl_chunk *chunks; /* the oldest first */
    bool on_gpu_only;
} nccl_staging;

/* One collective's room: size_bytes at both places, or at the GPU's alone; aligned to 64 bytes. */
typedef struct nccl_room {
    unsigned char *pinned, *on_gpu;
    nccl_chunk *chunk; /* NULL: none taken */
} nccl_room;

/* The watchdog knows better why something is late. */
enum { NCCL_WATCHDOG_GRACE_MS = 1500 };

typedef struct nccl_work {
    struct nccl_work *next; /* spare or under way */
    collective what;        /* as NCCL does it: host memory is replaced by w->room */
    cudaStream_t stream;    /* what waits for it; NULL: the host */
    cudaEvent_t begun;      /* host memory: the device's earlier work is done */
    cudaEvent_t done;
    nccl_room room;        /* host memory: where it passes through */
    unsigned char *result; /* in there */
    int64_t timeout_ms;    /* how long the host waits */
    void *out;             /* where it goes; NULL: nowhere */
    size_t out_bytes;
} nccl_work;

typedef struct nccl_group {
    device *dev;
    int gpu, rank, world_size;
    int64_t timeout_ms;
    nccl_comm comm;
    first_cause *cause;
    nccl_watch *watch;
    cudaStream_t stream;
    nccl_progress *progress; /* on the host */
    nccl_counters counters;

    pthread_mutex_t lock; /* guards all below: launches may come from another thread than waits */
    cudaEvent_t ready;    /* recorded and waited for in one go */
    nccl_staging staging; /* for host memory */
    nccl_staging aside;   /* for inputs that must not stay where they are */
    nccl_work *first, *last; /* under way */
    nccl_work *spare;
    bool batching;    /* what is launched is kept for the end of the batch */
    nccl_work *batch; /* its first; the others follow. NULL: none yet */
} nccl_group;

/* For host memory the copies are part of it: in before the turn's first kernel, out after its last.
 */

/* A chunk is handed out from its beginning to its end, and is empty again when all its rooms have
 * been given back. */

enum { ALIGN = 64, CHUNK_BYTES = 256 << 10 };

struct nccl_chunk {
    nccl_chunk *next;
    unsigned char *pinned, *on_gpu;
    size_t size_bytes, used_bytes;
    int users;
};

static void destroy_chunk(nccl_chunk *chunk)
{
    if (chunk->pinned != NULL)
        (void)CUDA_CALL(cudaFreeHost(chunk->pinned));
    if (chunk->on_gpu != NULL)
        (void)CUDA_CALL(cudaFree(chunk->on_gpu));
    free(chunk);
}

static status add_chunk(nccl_staging *staging, size_t size_bytes, nccl_chunk **out)
{
    nccl_chunk *chunk = calloc(1, sizeof *chunk);
    if (chunk == NULL)
        return FAIL(STATUS_NO_MEMORY, "a chunk of pinned memory");
    chunk->size_bytes = size_bytes > CHUNK_BYTES ? size_bytes : CHUNK_BYTES;
    status st = STATUS_OK;
    if (!staging->on_gpu_only)
        st = CUDA_CALL(
            cudaHostAlloc((void **)&chunk->pinned, chunk->size_bytes, cudaHostAllocDefault));
    if (st == STATUS_OK)
        st = CUDA_CALL(cudaMalloc((void **)&chunk->on_gpu, chunk->size_bytes));
    if (st != STATUS_OK) {
        destroy_chunk(chunk);
        return st;
    }
    nccl_chunk **last = &staging->chunks;
    while (*last != NULL)
        last = &(*last)->next;
    *last = chunk;
    *out = chunk;
    return STATUS_OK;
}

static size_t round_up(size_t size_bytes)
{
    return (size_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* The first chunk that has so much left; NULL: none. */
static nccl_chunk *find_chunk(const nccl_staging *staging, size_t size_bytes)
{
    nccl_chunk *chunk = staging->chunks;
    while (chunk != NULL && chunk->size_bytes - chunk->used_bytes < size_bytes)
        chunk = chunk->next;
    return chunk;
}

/* Whether taking that many allocates nothing. */
static bool nccl_staging_has(const nccl_staging *staging, size_t size_bytes)
{
    return find_chunk(staging, round_up(size_bytes)) != NULL;
}

/* Allocates on the current GPU if all that is there is in use. */
static status nccl_staging_take(nccl_staging *staging, size_t size_bytes, nccl_room *out)
{
    size_t rounded = round_up(size_bytes);
    nccl_chunk *chunk = find_chunk(staging, rounded);
    if (chunk == NULL)
        TRY(add_chunk(staging, rounded, &chunk));
    *out = (nccl_room){.on_gpu = chunk->on_gpu + chunk->used_bytes, .chunk = chunk};
    if (chunk->pinned != NULL)
        out->pinned = chunk->pinned + chunk->used_bytes;
    chunk->used_bytes += rounded;
    chunk->users++;
    return STATUS_OK;
}

/* Its copies must be through. Accepts a room that was never taken. */
static void nccl_staging_give_back(nccl_room *room)
{
    if (room->chunk != NULL && --room->chunk->users == 0)
        room->chunk->used_bytes = 0;
    *room = (nccl_room){0};
}

/* The GPU must be idle: freeing waits for it. */
static void nccl_staging_close(nccl_staging *staging)
{
    while (staging->chunks != NULL) {
        nccl_chunk *chunk = staging->chunks;
        staging->chunks = chunk->next;
        destroy_chunk(chunk);
    }
}

enum { ROOM_ALIGN = 64 };

/* What runs as one: all works from `first` on. */
static nccl_turn turn_of(const nccl_group *g, const nccl_work *first)
{
    nccl_turn turn = {0};
    uint64_t count = 0;
    for (const nccl_work *w = first; w != NULL; w = w->next) {
        count += w->what.count;
        if (w->what.timeout_ms > g->timeout_ms)
            turn.what |= NCCL_WHAT_FIRST;
        if (collective_is_send_or_recv(w->what.kind))
            turn.peers |= first_cause_bit(w->what.root);
    }
    turn.what |= nccl_what(first->next != NULL ? NCCL_WHAT_BATCH : (int)first->what.kind, count);
    return turn;
}

/* Memory of the GPU for *c's input. What runs later on the own stream may have it again: so it is
 * given back as soon as all is enqueued; and it stays where it is, for graphs. */
static status take_aside(nccl_group *g, const collective *c, size_t size_bytes, nccl_room *out)
{
    enum cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
    TRY(CUDA_CALL(cudaStreamIsCapturing(g->stream, &recording)));
    if (recording != cudaStreamCaptureStatusNone && !nccl_staging_has(&g->aside, size_bytes))
        return FAIL(STATUS_INVALID,
                    "backend nccl has no room yet for the %zu bytes of this %s: do it once before "
                    "it is recorded in a graph",
                    size_bytes, collective_kind_name(c->kind));
    return nccl_staging_take(&g->aside, size_bytes, out);
}

/* Enqueues the start, with the input scaled, and out of the way of an all_to_all in place: what is
 * left then is plain. Neither is ever asked of a batch. */
static status enter(nccl_group *g, nccl_work *first, nccl_room *aside)
{
    collective *c = &first->what, copy = *c;
    nccl_turn turn = turn_of(g, first);
    bool scaled = collective_reduces(c->kind) && (c->prescale < 1 || c->prescale > 1);
    bool moved = c->kind == COLLECTIVE_ALL_TO_ALL && c->in == c->out;
    size_t in_bytes = collective_in_bytes(c, g->rank, g->world_size);
    if (!scaled)
        TRY(nccl_kernels_enter(&g->counters, turn, g->stream));
    if (!scaled && !moved)
        return STATUS_OK;
    if (moved || in_bytes != collective_out_bytes(c, g->rank, g->world_size)) {
        TRY(take_aside(g, c, in_bytes, aside));
        copy.out = aside->on_gpu;
    }
    c->in = copy.out;
    copy.count = in_bytes / dtype_size(c->type);
    if (scaled)
        return nccl_kernels_enter_scaled(&g->counters, turn, &copy, g->stream);
    return CUDA_CALL(
        cudaMemcpyAsync(copy.out, copy.in, in_bytes, cudaMemcpyDeviceToDevice, g->stream));
}

/* Issues all in one group, so that no send or receive waits for another. Sets *call if it was the
 * group's own call that failed. */
static ncclResult_t issue(const nccl_group *g, const nccl_work *first, const char **call)
{
    nccl_place place = {g->comm.handle, g->stream, g->rank, g->world_size};
    ncclResult_t result = ncclGroupStart();
    if (result != ncclSuccess) {
        *call = "ncclGroupStart";
        return result;
    }
    for (const nccl_work *w = first;
         w != NULL && (result == ncclSuccess || result == ncclInProgress); w = w->next)
        result = nccl_operation_issue(&place, &w->what);
    ncclResult_t ended = ncclGroupEnd(); /* also of a group that failed */
    if (result != ncclSuccess && result != ncclInProgress)
        return result;
    if (ended != ncclSuccess && ended != ncclInProgress)
        *call = "ncclGroupEnd";
    return ended;
}

/* Unless the group is eager, NCCL enqueues its part in a thread of its own, so it has to settle
 * before anything is enqueued after it. */
static status call_nccl(nccl_group *g, const nccl_work *first)
{
    nccl_ask ask = {nccl_watch_check, g->watch};
    const char *name = first->next != NULL ? "a batch" : collective_kind_name(first->what.kind);
    int64_t timeout_ms = 0;
    for (const nccl_work *w = first; w != NULL; w = w->next)
        timeout_ms = w->timeout_ms > timeout_ms ? w->timeout_ms : timeout_ms;
    timeout_ms += NCCL_WATCHDOG_GRACE_MS;
    pthread_mutex_lock(&g->comm.lock);
    status st = nccl_watch_enter(g->watch, timeout_ms), broken = st;
    if (st == STATUS_OK) {
        const char *call = name;
        ncclResult_t issued = issue(g, first, &call);
        st = nccl_call_status(issued, call, __FILE__, __LINE__);
        if (st == STATUS_OK)
            st = nccl_comm_settle(&g->comm, name, clock_deadline_ns(timeout_ms), &ask);
        broken = nccl_watch_leave(g->watch);
    }
    pthread_mutex_unlock(&g->comm.lock);
    if (broken != STATUS_OK)
        return broken; /* an interrupted call does not know why */
    return st == STATUS_OK ? st : nccl_watch_blame(g->watch, st);
}

/* Enqueues all works from `first` on as one; their memory is the GPU's. */
static status run(nccl_group *g, nccl_work *first)
{
    nccl_room aside = {0};
    status st = enter(g, first, &aside);
    if (st == STATUS_OK)
        st = call_nccl(g, first);
    if (st == STATUS_OK)
        st = nccl_kernels_leave(&g->counters, g->stream);
    nccl_staging_give_back(&aside);
    return st;
}

/* Orders the own stream after what is on `stream` now. The lock is held. */
static status follow(nccl_group *g, cudaStream_t stream)
{
    TRY(CUDA_CALL(cudaEventRecord(g->ready, stream)));
    return CUDA_CALL(cudaStreamWaitEvent(g->stream, g->ready, 0));
}

/* What the collective reads and sets, side by side in w->room. */
static status make_room(nccl_group *g, nccl_work *w)
{
    collective *c = &w->what;
    size_t in_bytes = collective_in_bytes(c, g->rank, g->world_size);
    size_t in_room = (in_bytes + ROOM_ALIGN - 1) / ROOM_ALIGN * ROOM_ALIGN;
    w->out_bytes = collective_out_bytes(c, g->rank, g->world_size);
    TRY(nccl_staging_take(&g->staging, in_room + w->out_bytes + ROOM_ALIGN, &w->room));
    w->out = c->kind == COLLECTIVE_BARRIER ? NULL : c->out;
    w->result = w->room.pinned + in_room;
    if (in_bytes > 0)
        memcpy(w->room.pinned, c->in, in_bytes);
    c->in = w->room.on_gpu;
    c->out = w->room.on_gpu + in_room;
    if (in_bytes == 0)
        return STATUS_OK;
    return CUDA_CALL(cudaMemcpyAsync(w->room.on_gpu, w->room.pinned, in_bytes,
                                     cudaMemcpyHostToDevice, g->stream));
}

static status begin_on_host(nccl_group *g, nccl_work *w)
{
    enum cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
    cudaStream_t devices = (cudaStream_t)g->dev->stream;
    TRY(CUDA_CALL(cudaStreamIsCapturing(devices, &recording)));
    if (recording != cudaStreamCaptureStatusNone)
        return FAIL(STATUS_INVALID, "a collective on host memory cannot be recorded in a graph");
    TRY(follow(g, devices));
    TRY(CUDA_CALL(cudaEventRecord(w->begun, g->stream)));
    return make_room(g, w);
}

static status end(nccl_group *g, nccl_work *w)
{
    if (w->stream == NULL && w->out_bytes > 0)
        TRY(CUDA_CALL(cudaMemcpyAsync(w->result, w->what.out, w->out_bytes, cudaMemcpyDeviceToHost,
                                      g->stream)));
    return CUDA_CALL(cudaEventRecord(w->done, g->stream));
}

/* Enqueues all works from `first` on as one: a single one, or a batch of sends and receives, none
 * of which waits for another. Records the events of each. The group's lock is held. */
static status nccl_enqueue(nccl_group *g, nccl_work *first)
{
    for (nccl_work *w = first; w != NULL; w = w->next)
        TRY(w->stream != NULL ? follow(g, w->stream) : begin_on_host(g, w));
    TRY(run(g, first));
    for (nccl_work *w = first; w != NULL; w = w->next)
        TRY(end(g, w));
    return STATUS_OK;
}

enum { IDLE_TIMEOUT_MS = 3000 }; /* for the GPU to end what was aborted */

extern const process_group_ops nccl_ops;

static void destroy_work(nccl_work *w)
{
    if (w->begun != NULL)
        (void)CUDA_CALL(cudaEventDestroy(w->begun));
    if (w->done != NULL)
        (void)CUDA_CALL(cudaEventDestroy(w->done));
    free(w);
}

/* The lock is held. */
static status take_work(nccl_group *g, nccl_work **out)
{
    nccl_work *w = g->spare;
    if (w != NULL) {
        g->spare = w->next;
        w->next = NULL;
        *out = w;
        return STATUS_OK;
    }
    w = calloc(1, sizeof *w);
    if (w == NULL)
        return FAIL(STATUS_NO_MEMORY, "a work of %zu bytes", sizeof *w);
    status st = CUDA_CALL(cudaEventCreateWithFlags(&w->begun, cudaEventDisableTiming));
    if (st == STATUS_OK)
        st = CUDA_CALL(cudaEventCreateWithFlags(&w->done, cudaEventDisableTiming));
    if (st != STATUS_OK) {
        destroy_work(w);
        return st;
    }
    *out = w;
    return STATUS_OK;
}

/* Its own, or the group's if it has none. */
static int64_t timeout_of(const nccl_group *g, const collective *c)
{
    return c->timeout_ms > g->timeout_ms ? c->timeout_ms : g->timeout_ms;
}

static status nccl_launch(void *self, const collective *c, device_stream *stream, void **out_work)
{
    nccl_group *g = self;
    nccl_work *w = NULL;
    TRY(nccl_operation_check(c));
    TRY(nccl_watch_check(g->watch));
    TRY(CUDA_CALL(cudaSetDevice(g->gpu)));
    pthread_mutex_lock(&g->lock);
    status st = take_work(g, &w);
    if (st == STATUS_OK) {
        w->what = *c;
        w->stream = (cudaStream_t)stream;
        w->timeout_ms = timeout_of(g, c);
        *(g->first == NULL ? &g->first : &g->last->next) = w; /* also what fails half way */
        g->last = w;
        *out_work = w;
        if (!g->batching)
            st = nccl_enqueue(g, w);
        else if (g->batch == NULL)
            g->batch = w;
    }
    pthread_mutex_unlock(&g->lock);
    return st;
}

static status nccl_batch(void *self, bool begins)
{
    nccl_group *g = self;
    status st = STATUS_OK;
    pthread_mutex_lock(&g->lock);
    if (!begins && g->batch != NULL) {
        st = CUDA_CALL(cudaSetDevice(g->gpu));
        if (st == STATUS_OK)
            st = nccl_enqueue(g, g->batch);
    }
    g->batching = begins;
    g->batch = NULL;
    pthread_mutex_unlock(&g->lock);
    return st;
}

/* deadline_ns 0: none but the watchdog's. */
static status poll(nccl_group *g, cudaEvent_t event, int64_t deadline_ns)
{
    poll_pause pause = {0};
    for (;;) {
        cudaError_t code = cudaEventQuery(event);
        if (code != cudaErrorNotReady)
            return cuda_call_status(code, "cudaEventQuery", __FILE__, __LINE__);
        (void)cudaGetLastError(); /* "not ready" is no error, but some versions note it */
        if (poll_pause_once(&pause)) {
            TRY(nccl_watch_check(g->watch));
            if (deadline_ns != 0 && clock_passed(deadline_ns))
                return FAIL(STATUS_TIMEOUT, "not done within the timeout");
        }
    }
}

/* The device's own work, which comes first, may take its time. */
static status wait_on_host(nccl_group *g, nccl_work *w, int64_t *done_ns)
{
    TRY(poll(g, w->begun, 0));
    TRY(poll(g, w->done, clock_deadline_ns(w->timeout_ms + NCCL_WATCHDOG_GRACE_MS)));
    *done_ns = clock_now_ns();
    if (w->out != NULL)
        memcpy(w->out, w->result, w->out_bytes);
    return STATUS_OK;
}

static status nccl_wait(void *self, void *work_, int64_t deadline_ns, int64_t *done_ns)
{
    nccl_group *g = self;
    nccl_work *w = work_;
    (void)deadline_ns; /* the device counts it from when it enters the collective */
    *done_ns = 0;
    status st = nccl_watch_check(g->watch);
    if (st == STATUS_OK)
        st = CUDA_CALL(cudaSetDevice(g->gpu));
    if (st == STATUS_OK && w->stream != NULL)
        st = CUDA_CALL(cudaStreamWaitEvent(w->stream, w->done, 0));
    else if (st == STATUS_OK)
        st = wait_on_host(g, w, done_ns);
    if (st != STATUS_OK)
        return st; /* its memory may be in use: it stays where it is */
    pthread_mutex_lock(&g->lock);
    ASSERT(g->first == w);
    g->first = w->next;
    nccl_staging_give_back(&w->room);
    w->next = g->spare;
    g->spare = w;
    pthread_mutex_unlock(&g->lock);
    return STATUS_OK;
}

static status nccl_check(void *self)
{
    return nccl_watch_check(((nccl_group *)self)->watch);
}

static void nccl_abort(void *self, const char *why)
{
    nccl_watch_abort(((nccl_group *)self)->watch, why);
}

/* Whether both streams end their work in time. */
static bool runs_empty(const nccl_group *g)
{
    cudaStream_t streams[] = {g->stream, (cudaStream_t)g->dev->stream};
    int64_t deadline_ns = clock_deadline_ns(IDLE_TIMEOUT_MS);
    for (int i = 0; i < 2; i++) {
        poll_pause pause = {0};
        cudaError_t code = cudaErrorNotReady;
        while (streams[i] != NULL && (code = cudaStreamQuery(streams[i])) == cudaErrorNotReady) {
            (void)cudaGetLastError();
            if (clock_passed(deadline_ns))
                return false;
            (void)poll_pause_once(&pause);
        }
    }
    return true;
}

static void destroy_works(nccl_work *w)
{
    while (w != NULL) {
        nccl_work *next = w->next;
        destroy_work(w);
        w = next;
    }
}

/* Frees memory of the GPU, which waits for all its work: only call it if that work ends. */
static void free_memory(nccl_group *g)
{
    nccl_staging_close(&g->staging);
    nccl_staging_close(&g->aside);
    if (g->counters.counts != NULL)
        (void)CUDA_CALL(cudaFree(g->counters.counts));
    if (g->progress != NULL)
        (void)CUDA_CALL(cudaFreeHost(g->progress));
}

/* Tells the peers, who may still wait for this rank, how far it has come. */
static void leave(const nccl_group *g, departure *how)
{
    uint64_t left = __atomic_load_n(&g->progress->left, __ATOMIC_ACQUIRE);
    uint64_t entered = __atomic_load_n(&g->progress->entered, __ATOMIC_ACQUIRE);
    how->number = __atomic_load_n(&g->progress->number, __ATOMIC_ACQUIRE);
    if (entered > left && how->number > 0)
        how->number--; /* it is not done */
    first_cause_depart(g->cause, how);
}

/* Also of a group that was half made, or whose work hangs: aborting the communicator ends it. */
static void nccl_destroy(void *self)
{
    nccl_group *g = self;
    bool was_made = g->watch != NULL;
    departure how = {0};
    if (was_made)
        how.why = nccl_watch_read(g->watch, how.words, sizeof how.words);
    bool well = was_made && how.why == STATUS_OK && g->first == NULL;
    if (g->comm.parent != NULL) /* its end waits for its work, without a deadline */
        well = well && runs_empty(g);
    (void)CUDA_CALL(cudaSetDevice(g->gpu));
    nccl_watch_destroy(g->watch);
    if (was_made && !well)
        leave(g, &how);
    nccl_comm_close(&g->comm, well);
    if (well) /* by now all that it had enqueued is done */
        leave(g, &how);
    if (runs_empty(g))
        free_memory(g);
    destroy_works(g->first);
    destroy_works(g->spare);
    if (g->ready != NULL)
        (void)CUDA_CALL(cudaEventDestroy(g->ready));
    if (g->stream != NULL)
        (void)CUDA_CALL(cudaStreamDestroy(g->stream));
    first_cause_destroy(g->cause);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* More urgent than the arithmetic: a bucket that is late delays all ranks. */
static status open_stream(nccl_group *g)
{
    int least = 0, greatest = 0;
    TRY(CUDA_CALL(cudaDeviceGetStreamPriorityRange(&least, &greatest)));
    TRY(CUDA_CALL(cudaStreamCreateWithPriority(&g->stream, cudaStreamNonBlocking, greatest)));
    return CUDA_CALL(cudaEventCreateWithFlags(&g->ready, cudaEventDisableTiming));
}

static status open_counters(nccl_group *g)
{
    nccl_progress *counts = NULL; /* and one to load the kernels with */
    TRY(CUDA_CALL(cudaMalloc((void **)&counts, 2 * sizeof *counts)));
    g->counters.counts = counts;
    TRY(CUDA_CALL(cudaMemsetAsync(counts, 0, 2 * sizeof *counts, g->stream)));
    TRY(nccl_kernels_load(counts + 1, g->stream));
    TRY(CUDA_CALL(cudaHostAlloc((void **)&g->progress, sizeof *g->progress,
                                cudaHostAllocMapped | cudaHostAllocPortable)));
    *g->progress = (nccl_progress){0};
    return CUDA_CALL(cudaHostGetDevicePointer((void **)&g->counters.progress, g->progress, 0));
}

/* What this rank does by itself, before there is a communicator: it loads kernels. */
static status prepare(nccl_group *g)
{
    TRY(CUDA_CALL(cudaSetDevice(g->gpu)));
    TRY(open_stream(g));
    return open_counters(g);
}

static status open_group(nccl_group *g, const group_setup *setup)
{
    const process_group_options *o = setup->options;
    nccl_room room = {0};
    status st = prepare(g);
    if (st != STATUS_OK) {
        peers_decline(setup);
        return st;
    }
    int64_t deadline_ns = clock_deadline_ns(process_group_patience_ms(o));
    TRY(first_cause_create(setup, NULL, deadline_ns, &g->cause));
    TRY(nccl_comm_open(&g->comm, setup, g->cause, deadline_ns));
    TRY(nccl_staging_take(&g->staging, 1,
                          &room)); /* memory at hand: allocating later may disturb */
    nccl_staging_give_back(&room);
    nccl_watch_options watch = {&g->comm,      g->progress, g->cause,
                                o->timeout_ms, o->stuck,    o->stuck_ctx};
    return nccl_watch_create(&watch, &g->watch);
}

static status nccl_create(const group_setup *setup, void **self)
{
    const process_group_options *o = setup->options;
    ASSERT(o->device != NULL && o->device->stream != NULL);
    nccl_group *g = calloc(1, sizeof *g);
    if (g == NULL)
        return FAIL(STATUS_NO_MEMORY, "an nccl group");
    g->dev = o->device;
    g->gpu = cuda_state_of(o->device)->index;
    g->rank = o->rank;
    g->world_size = o->world_size;
    g->timeout_ms = o->timeout_ms;
    pthread_mutex_init(&g->lock, NULL);
    g->aside.on_gpu_only = true;
    nccl_comm_init(&g->comm);
    g->comm.aborted = o->aborted;
    status st = open_group(g, setup);
    if (st != STATUS_OK) {
        status_kept cause; /* what follows is of less interest */
        status_keep(&cause);
        nccl_destroy(g);
        status_restore(&cause);
        return st;
    }
    *self = g;
    return STATUS_OK;
}

const process_group_ops nccl_ops = {
    .name = "nccl",
    .device_memory = true,
    .create = nccl_create,
    .launch = nccl_launch,
    .wait = nccl_wait,
    .batch = nccl_batch,
    .check = nccl_check,
    .abort = nccl_abort,
    .destroy = nccl_destroy,
    .traffic = collective_chain_traffic,
    .version = nccl_call_version,
};
