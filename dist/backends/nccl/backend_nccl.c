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
#include "dist/backends/nccl/nccl_enqueue.h"
#include "dist/backends/nccl/nccl_operation.h"
#include "dist/collective/process_group_ops.h"
#include "kernels/cuda/cuda_state.h"

#include <stdlib.h>
#include <string.h>

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
