/* For host memory the copies are part of it: in before the turn's first kernel, out after its last.
 */
#include "dist/backends/nccl/nccl_enqueue.h"

#include "base/clock.h"
#include "dist/backends/nccl/nccl_operation.h"
#include "kernels/cuda/cuda_call.h"

#include <stdlib.h>
#include <string.h>

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

status nccl_staging_take(nccl_staging *staging, size_t size_bytes, nccl_room *out)
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

void nccl_staging_give_back(nccl_room *room)
{
    if (room->chunk != NULL && --room->chunk->users == 0)
        room->chunk->used_bytes = 0;
    *room = (nccl_room){0};
}

void nccl_staging_close(nccl_staging *staging)
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

/* NCCL enqueues its part in a thread of its own, so it has to settle before anything is enqueued
 * after it. */
static status call_nccl(nccl_group *g, const nccl_work *first)
{
    nccl_ask ask = {nccl_watch_check, g->watch};
    const char *name = first->next != NULL ? "a batch" : collective_kind_name(first->what.kind);
    int64_t timeout_ms = 0;
    for (const nccl_work *w = first; w != NULL; w = w->next)
        timeout_ms = w->timeout_ms > timeout_ms ? w->timeout_ms : timeout_ms;
    pthread_mutex_lock(&g->comm.lock);
    nccl_watch_host_waits(g->watch, true);
    const char *call = name;
    ncclResult_t issued = issue(g, first, &call);
    status st = nccl_call_status(issued, call, __FILE__, __LINE__);
    if (st == STATUS_OK)
        st = nccl_comm_settle(&g->comm, name,
                              clock_deadline_ns(timeout_ms + NCCL_WATCHDOG_GRACE_MS), &ask);
    nccl_watch_host_waits(g->watch, false);
    pthread_mutex_unlock(&g->comm.lock);
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

status nccl_enqueue(nccl_group *g, nccl_work *first)
{
    for (nccl_work *w = first; w != NULL; w = w->next)
        TRY(w->stream != NULL ? follow(g, w->stream) : begin_on_host(g, w));
    TRY(run(g, first));
    for (nccl_work *w = first; w != NULL; w = w->next)
        TRY(end(g, w));
    return STATUS_OK;
}
