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
#include "base/poll_pause.h"
#include "dist/backends/nccl/nccl_comm.h"
#include "dist/backends/nccl/nccl_kernels.h"
#include "dist/backends/nccl/nccl_staging.h"
#include "dist/backends/nccl/nccl_watch.h"
#include "dist/collective/collective.h"
#include "kernels/cuda/cuda_state.h"

#include <stdlib.h>
#include <string.h>

enum {
    WATCHDOG_GRACE_MS = 1500, /* the watchdog knows better why something is late */
    IDLE_TIMEOUT_MS = 3000,   /* for the GPU to end what was aborted */
    ROOM_ALIGN = 64,
};

typedef struct nccl_work {
    struct nccl_work *next; /* spare or under way */
    cudaStream_t stream;    /* what waits for it; NULL: the host */
    cudaEvent_t begun;      /* host memory: the device's earlier work is done */
    cudaEvent_t done;
    nccl_room room;        /* host memory: where it passes through */
    unsigned char *result; /* in there */
    int64_t timeout_ms;    /* of a wait on the host */
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

    pthread_mutex_t lock; /* of all below: launches may come from another thread than waits */
    cudaEvent_t ready;    /* recorded and waited for in one go */
    nccl_staging staging;
    nccl_work *first, *last; /* under way */
    nccl_work *spare;
} nccl_group;

extern const process_group_ops nccl_ops;

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

/* NCCL's call for a collective that is neither scaled nor on host memory. A barrier is an
 * all_reduce of one number. */
static ncclResult_t call_nccl(const collective *c, ncclComm_t comm, cudaStream_t stream)
{
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
    case COLLECTIVE_SEND:
        return ncclSend(c->in, c->count, type, c->root, comm, stream);
    case COLLECTIVE_RECV:
        return ncclRecv(c->out, c->count, type, c->root, comm, stream);
    case COLLECTIVE_GATHER:
    case COLLECTIVE_SCATTER:
    case COLLECTIVE_ALL_TO_ALL:
    case COLLECTIVE_KIND_COUNT:
        break; /* nccl_launch has refused them */
    }
    return ncclInvalidArgument;
}

/* Enqueues the start, with *c scaled: what is left then is a plain collective. */
static status enter(nccl_group *g, collective *c)
{
    uint64_t what = nccl_what(c->kind, c->root, c->count);
    if (c->timeout_ms > g->timeout_ms)
        what |= NCCL_WHAT_FIRST;
    if (c->prescale >= 1 && c->prescale <= 1)
        return nccl_kernels_enter(&g->counters, what, g->stream);
    TRY(nccl_kernels_enter_scaled(&g->counters, what, c, g->stream));
    c->in = c->out;
    return STATUS_OK;
}

/* Its own, or the group's if it has none. */
static int64_t timeout_of(const nccl_group *g, const collective *c)
{
    return c->timeout_ms > g->timeout_ms ? c->timeout_ms : g->timeout_ms;
}

/* Enqueues all of a collective on device memory. NCCL enqueues its part in a thread of its own, so
 * it has to settle before anything is enqueued after it. */
static status run(nccl_group *g, collective c)
{
    nccl_ask ask = {nccl_watch_check, g->watch};
    TRY(enter(g, &c));
    pthread_mutex_lock(&g->comm.lock);
    nccl_watch_host_waits(g->watch, true);
    status st = nccl_call_status(call_nccl(&c, g->comm.handle, g->stream),
                                 collective_kind_name(c.kind), __FILE__, __LINE__);
    if (st == STATUS_OK)
        st = nccl_comm_settle(&g->comm, collective_kind_name(c.kind),
                              clock_deadline_ns(timeout_of(g, &c) + WATCHDOG_GRACE_MS), &ask);
    nccl_watch_host_waits(g->watch, false);
    pthread_mutex_unlock(&g->comm.lock);
    if (st != STATUS_OK)
        return nccl_watch_blame(g->watch, st);
    return nccl_kernels_leave(&g->counters, g->stream);
}

/* Orders the own stream after what is on `stream` now. The lock is held. */
static status follow(nccl_group *g, cudaStream_t stream)
{
    TRY(CUDA_CALL(cudaEventRecord(g->ready, stream)));
    return CUDA_CALL(cudaStreamWaitEvent(g->stream, g->ready, 0));
}

static status launch_on_device(nccl_group *g, const collective *c, nccl_work *w)
{
    TRY(follow(g, w->stream));
    TRY(run(g, *c));
    return CUDA_CALL(cudaEventRecord(w->done, g->stream));
}

/* What the collective reads and sets, side by side in w->room. */
static status make_room(nccl_group *g, const collective *c, nccl_work *w, collective *on_gpu)
{
    size_t in_bytes = collective_in_bytes(c, g->rank, g->world_size);
    size_t in_room = (in_bytes + ROOM_ALIGN - 1) / ROOM_ALIGN * ROOM_ALIGN;
    w->out_bytes = collective_out_bytes(c, g->rank, g->world_size);
    TRY(nccl_staging_take(&g->staging, in_room + w->out_bytes + ROOM_ALIGN, &w->room));
    w->out = c->kind == COLLECTIVE_BARRIER ? NULL : c->out;
    w->result = w->room.pinned + in_room;
    if (in_bytes > 0)
        memcpy(w->room.pinned, c->in, in_bytes);
    *on_gpu = *c;
    on_gpu->in = w->room.on_gpu;
    on_gpu->out = w->room.on_gpu + in_room;
    if (in_bytes == 0)
        return STATUS_OK;
    return CUDA_CALL(cudaMemcpyAsync(w->room.on_gpu, w->room.pinned, in_bytes,
                                     cudaMemcpyHostToDevice, g->stream));
}

static status launch_from_host(nccl_group *g, const collective *c, nccl_work *w)
{
    enum cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
    cudaStream_t devices = (cudaStream_t)g->dev->stream;
    collective on_gpu;
    TRY(CUDA_CALL(cudaStreamIsCapturing(devices, &recording)));
    if (recording != cudaStreamCaptureStatusNone)
        return FAIL(STATUS_INVALID, "a collective on host memory cannot be recorded in a graph");
    TRY(follow(g, devices));
    TRY(CUDA_CALL(cudaEventRecord(w->begun, g->stream)));
    TRY(make_room(g, c, w, &on_gpu));
    TRY(run(g, on_gpu));
    if (w->out_bytes > 0)
        TRY(CUDA_CALL(cudaMemcpyAsync(w->result, on_gpu.out, w->out_bytes, cudaMemcpyDeviceToHost,
                                      g->stream)));
    return CUDA_CALL(cudaEventRecord(w->done, g->stream));
}

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

static status check_kind(const collective *c)
{
    bool scaled = c->prescale < 1 || c->prescale > 1;
    if (c->kind == COLLECTIVE_GATHER || c->kind == COLLECTIVE_SCATTER ||
        c->kind == COLLECTIVE_ALL_TO_ALL)
        return FAIL(STATUS_INVALID, "backend nccl has no %s", collective_kind_name(c->kind));
    if (collective_is_send_or_recv(c->kind) && c->tag != 0)
        return FAIL(STATUS_INVALID, "backend nccl has no tags");
    bool can_scale = c->kind == COLLECTIVE_ALL_REDUCE && dtype_is_float(c->type) &&
                     dtype_size(c->type) > 2; /* in and out have one shape, on every rank */
    if (scaled && !can_scale)
        return FAIL(STATUS_INVALID, "backend nccl has no prescale of %s in %s", dtype_name(c->type),
                    collective_kind_name(c->kind));
    return STATUS_OK;
}

static status nccl_launch(void *self, const collective *c, device_stream *stream, void **out_work)
{
    nccl_group *g = self;
    nccl_work *w = NULL;
    TRY(check_kind(c));
    TRY(nccl_watch_check(g->watch));
    TRY(CUDA_CALL(cudaSetDevice(g->gpu)));
    pthread_mutex_lock(&g->lock);
    status st = take_work(g, &w);
    if (st == STATUS_OK) {
        w->stream = (cudaStream_t)stream;
        w->timeout_ms = timeout_of(g, c);
        st = stream != NULL ? launch_on_device(g, c, w) : launch_from_host(g, c, w);
        *(g->first == NULL ? &g->first : &g->last->next) = w; /* also what failed half way */
        g->last = w;
        *out_work = w;
    }
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
    TRY(poll(g, w->done, clock_deadline_ns(w->timeout_ms + WATCHDOG_GRACE_MS)));
    *done_ns = clock_now_ns();
    if (w->out != NULL)
        memcpy(w->out, w->result, w->out_bytes);
    return STATUS_OK;
}

static status nccl_wait(void *self, void *work_, int64_t deadline_ns, int64_t *done_ns)
{
    nccl_group *g = self;
    nccl_work *w = work_;
    (void)deadline_ns; /* of a collective on the device it counts from when it is entered */
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
    nccl_comm_init(&g->comm);
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
    .check = nccl_check,
    .destroy = nccl_destroy,
    .traffic = collective_chain_traffic,
    .version = nccl_call_version,
};
