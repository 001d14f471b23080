/* Convolutions of the cuda device. One channel of plain input: own kernels (conv_first.cu).
 * Channels innermost (NHWC) on both sides: cuDNN, with own kernels around it (conv_sums.cu).
 *
 * Weights lie in the arena channels innermost as well, (O, K, K, C).
 */
#include "base/memory.h"
#include "kernels/cuda/choices.h"
#include "kernels/cuda/conv_choose.h"
#include "kernels/cuda/conv_kernels.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/wait.h"

#include <stdio.h>
#include <stdlib.h>

/* Convolutions through cuDNN, channels innermost on both sides.
 *
 * A cuDNN execution plan is for one batch size. It is chosen at the first batch of that size, which
 * must not be during graph capture. If the chosen engine wants more than the workspace, the batch
 * is cut into pieces.
 */

/* Timing the first few engines may find a faster one, but then bits would depend on what else the
 * GPU does meanwhile. So cuDNN's first choice is taken, unless $MNIST_DDP_CUDA_AUTOTUNE says how
 * many to time. */
static const char AUTOTUNE[] = "MNIST_DDP_CUDA_AUTOTUNE";

enum { MAX_TRIES = 16, TIMED_RUNS = 3 };

typedef struct conv_choices {
    conv_choice *all;
    int count, capacity;
} conv_choices;

typedef struct conv_cudnn {
    device *dev;
    conv2d_shape shape;
    cudnnDataType_t type;
    size_t x_bytes, y_bytes; /* one image's */
    int tries;               /* engines that are timed */
    conv_choices choices[CONV_PASSES];
} conv_cudnn;

/* Of whole batches; device memory, of the activations' type, aligned to 16 bytes. */
typedef struct conv_arrays {
    const void *x, *w, *y;
    const void *bias; /* CONV_PASS_FORWARD_BIAS only */
} conv_arrays;

static const char *const PASS_NAMES[] = {
    [CONV_PASS_FORWARD_BIAS] = "forward_bias",
    [CONV_PASS_FORWARD] = "forward",
    [CONV_PASS_DATA] = "data",
    [CONV_PASS_WEIGHTS] = "weights",
};

/* Adds the convolution to a failure's message. */
static status named(const conv_cudnn *c, conv_pass pass, int n, status st)
{
    static const char *const types[] = {"f32", "tf32", "bf16", "fp16"};
    const conv2d_shape *s = &c->shape;
    if (st == STATUS_OK)
        return STATUS_OK;
    return status_context(st, "convolution %d->%d channels, %dx%d on %dx%d, %s, %s, batch of %d",
                          s->channels, s->out_channels, s->kernel, s->kernel, s->height, s->width,
                          types[c->dev->precision], PASS_NAMES[pass], n);
}

static status read_tries(int *out)
{
    const char *text = getenv(AUTOTUNE);
    *out = 1;
    if (text == NULL)
        return STATUS_OK;
    char *end = NULL;
    long tries = strtol(text, &end, 10);
    if (end == text || *end != '\0' || tries < 1 || tries > MAX_TRIES)
        return FAIL(STATUS_INVALID, "%s is '%s': it counts engines to time, 1 to %d", AUTOTUNE,
                    text, MAX_TRIES);
    *out = (int)tries;
    return STATUS_OK;
}

static status start_cudnn(device *dev)
{
    cuda_state *s = cuda_state_of(dev);
    if (s->dnn != NULL)
        return STATUS_OK;
    cudnnHandle_t handle = NULL;
    TRY(cuda_use(dev));
    TRY(CUDNN_CALL(cudnnCreate(&handle)));
    status st = CUDNN_CALL(cudnnSetStream(handle, s->stream));
    if (st == STATUS_OK)
        st = cuda_alloc(dev, s->conv_workspace_bytes, &s->conv_workspace);
    if (st != STATUS_OK) {
        (void)cudnnDestroy(handle);
        return st;
    }
    s->dnn = handle;
    return STATUS_OK;
}

static cudnnDataType_t type_of(const device *dev)
{
    return dev->precision == PRECISION_BF16  ? CUDNN_DATA_BFLOAT16
           : dev->precision == PRECISION_F16 ? CUDNN_DATA_HALF
                                             : CUDNN_DATA_FLOAT;
}

/* Makes the device's cuDNN handle and workspace if it has none yet. */
static status conv_cudnn_create(device *dev, const conv2d_shape *shape, conv_cudnn **out)
{
    int tries = 0;
    conv_cudnn *c = NULL;
    TRY(read_tries(&tries));
    TRY(start_cudnn(dev));
    TRY(memory_alloc(sizeof *c, (void **)&c));
    size_t element_bytes = cuda_is_half(dev) ? 2 : 4;
    int out_h = shape->height - shape->kernel + 1, out_w = shape->width - shape->kernel + 1;
    *c = (conv_cudnn){
        .dev = dev,
        .shape = *shape,
        .type = type_of(dev),
        .x_bytes = element_bytes * (size_t)(shape->channels * shape->height * shape->width),
        .y_bytes = element_bytes * (size_t)(shape->out_channels * out_h * out_w),
        .tries = tries,
    };
    *out = c;
    return STATUS_OK;
}

static void conv_cudnn_destroy(conv_cudnn *c)
{
    if (c == NULL)
        return;
    for (int pass = 0; pass < CONV_PASSES; pass++) {
        for (int i = 0; i < c->choices[pass].count; i++)
            conv_engine_close(&c->choices[pass].all[i].engine);
        free(c->choices[pass].all);
    }
    free(c);
}

static status execute(const conv_cudnn *c, conv_pass pass, const conv_engine *engine,
                      const conv_arrays *a)
{
    const cuda_state *s = cuda_state_of(c->dev);
    const int64_t names[] = {CONV_X, CONV_W, CONV_Y, CONV_BIAS};
    const void *pointers[] = {a->x, a->w, a->y, a->bias};
    int count = pass == CONV_PASS_FORWARD_BIAS ? 4 : 3;
    for (int i = 0; i < count; i++)
        if ((uintptr_t)pointers[i] % CONV_ALIGNMENT != 0)
            return FAIL(STATUS_INVALID, "array %d is at %p, not aligned to %d bytes", i,
                        pointers[i], CONV_ALIGNMENT);
    const conv_attribute attributes[] = {
        {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, names},
        {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers},
        {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &s->conv_workspace},
    };
    cudnnBackendDescriptor_t pack = NULL;
    TRY(conv_descriptor_make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, attributes, 3, &pack));
    status st = CUDNN_CALL(cudnnBackendExecute(s->dnn, engine->plan, pack));
    conv_descriptor_destroy(pack);
    return st;
}

typedef struct measurement {
    const conv_cudnn *c;
    conv_pass pass;
    const conv_arrays *arrays; /* the output is overwritten after the choice */
} measurement;

/* Once to warm up, then timed. */
static status time_runs(const measurement *m, const conv_engine *engine, cudaEvent_t ends[2])
{
    cudaStream_t stream = cuda_state_of(m->c->dev)->stream;
    TRY(execute(m->c, m->pass, engine, m->arrays));
    TRY(CUDA_CALL(cudaEventRecord(ends[0], stream)));
    for (int i = 0; i < TIMED_RUNS; i++)
        TRY(execute(m->c, m->pass, engine, m->arrays));
    TRY(CUDA_CALL(cudaEventRecord(ends[1], stream)));
    return cuda_wait_event(m->c->dev, ends[1], "timing convolutions");
}

static status measure(void *ctx, const conv_engine *engine, float *out_ms)
{
    cudaEvent_t ends[2] = {NULL, NULL};
    status st = CUDA_CALL(cudaEventCreateWithFlags(&ends[0], cudaEventDefault));
    if (st == STATUS_OK)
        st = CUDA_CALL(cudaEventCreateWithFlags(&ends[1], cudaEventDefault));
    if (st == STATUS_OK)
        st = time_runs(ctx, engine, ends);
    if (st == STATUS_OK)
        st = CUDA_CALL(cudaEventElapsedTime(out_ms, ends[0], ends[1]));
    for (int i = 0; i < 2; i++)
        if (ends[i] != NULL)
            (void)cudaEventDestroy(ends[i]);
    return st;
}

static status choose(const conv_cudnn *c, conv_pass pass, int n, const conv_arrays *a,
                     conv_choice *out)
{
    const cuda_state *s = cuda_state_of(c->dev);
    measurement m = {c, pass, a};
    const conv_problem problem = {
        .work = {.shape = c->shape, .type = c->type, .pass = pass, .n = n},
        .handle = s->dnn,
        .target.plan = {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &s->dnn},
        .tensor_cores = c->dev->precision != PRECISION_F32,
        .workspace_bytes = s->conv_workspace_bytes,
        .tries = c->tries,
        .measure = measure,
        .ctx = &m,
    };
    if (s->capturing)
        return FAIL(STATUS_INVALID, "the first batch of a size must not be recorded in a graph");
    return conv_choose(&problem, out);
}

/* The choice for a batch of n, made now if there is none yet. The pointer is valid until the next
 * choice. */
static status choice_for(conv_cudnn *c, conv_pass pass, int n, const conv_arrays *a,
                         const conv_choice **out)
{
    conv_choices *known = &c->choices[pass];
    for (int i = 0; i < known->count; i++)
        if (known->all[i].n == n) {
            *out = &known->all[i];
            return STATUS_OK;
        }
    if (known->count == known->capacity) {
        int capacity = known->capacity > 0 ? 2 * known->capacity : 4;
        conv_choice *all = realloc(known->all, sizeof *all * (size_t)capacity);
        if (all == NULL)
            return FAIL(STATUS_NO_MEMORY, "%d plans", capacity);
        known->all = all;
        known->capacity = capacity;
    }
    conv_choice *made = &known->all[known->count];
    TRY(choose(c, pass, n, a, made));
    known->count++;
    *out = made;
    return STATUS_OK;
}

/* For reports. */
static status note(const conv_cudnn *c, conv_pass pass, int n, const conv_choice *choice)
{
    const conv2d_shape *s = &c->shape;
    const conv_engine *e = &choice->engine;
    device_choice noted = {.library = "cudnn",
                           .batch = n,
                           .piece = choice->n,
                           .engine = e->plan != NULL ? e->index : -1,
                           .workspace_bytes = (int64_t)e->workspace_bytes};
    snprintf(noted.subject, sizeof noted.subject, "%d->%d, %dx%d on %dx%d", s->channels,
             s->out_channels, s->kernel, s->kernel, s->height, s->width);
    snprintf(noted.pass, sizeof noted.pass, "%s", PASS_NAMES[pass]);
    if (e->plan != NULL)
        conv_engine_write_notes(e, noted.notes, sizeof noted.notes);
    else
        snprintf(noted.notes, sizeof noted.notes, "no engine: an own kernel adds the bias");
    return cuda_note_choice(c->dev, &noted, NULL);
}

/* Of n images or, if they are cut into pieces, of a piece. */
static status whole_choice_for(conv_cudnn *c, conv_pass pass, int n, const conv_arrays *a,
                               const conv_choice **out)
{
    int known = c->choices[pass].count;
    TRY(choice_for(c, pass, n, a, out));
    while ((*out)->piece > 0)
        TRY(choice_for(c, pass, (*out)->piece, a, out));
    return c->choices[pass].count > known ? note(c, pass, n, *out) : STATUS_OK;
}

static status run(conv_cudnn *c, conv_pass pass, int n, int first, const conv_arrays *arrays,
                  int *count)
{
    conv_arrays a = *arrays;
    a.x = (const char *)a.x + (size_t)first * c->x_bytes;
    a.y = (const char *)a.y + (size_t)first * c->y_bytes;
    const conv_choice *choice = NULL;
    TRY(whole_choice_for(c, pass, n, &a, &choice));
    if (n - first < choice->n)
        TRY(whole_choice_for(c, pass, n - first, &a, &choice));
    *count = choice->engine.plan != NULL ? choice->n : 0;
    return *count > 0 ? execute(c, pass, &choice->engine, &a) : STATUS_OK;
}

/* Enqueues one pass for images [first, first + *count) of n, as many as the workspace allows. Call
 * it until all n are done. With CONV_PASS_WEIGHTS each call overwrites w. *count = 0: there is no
 * engine for it; CONV_PASS_FORWARD_BIAS only. */
static status conv_cudnn_run(conv_cudnn *c, conv_pass pass, int n, int first,
                             const conv_arrays *arrays, int *count)
{
    return named(c, pass, n, run(c, pass, n, first, arrays, count));
}

enum { CHANNELS_MULTIPLE = 8, MAX_CHANNELS = 1024 }; /* between layers */

typedef struct plan_state {
    device *dev;
    conv2d_shape s;
    int out_h, out_w;
    size_t weights;
    conv_sums sums;    /* dw and db of the first convolution, else db */
    conv_cudnn *cudnn; /* NULL: the first convolution */
    void *dw;          /* in the activations' type: cuDNN's output, converted into the arena
                          afterwards */
} plan_state;

static plan_state *state(conv2d *plan)
{
    return (plan_state *)(void *)plan;
}

static status check(const conv2d_shape *s, int max_n)
{
    if (s->plain_input)
        return conv_first_check(s, max_n);
    if (s->kernel < 1 || s->kernel > s->height || s->kernel > s->width || s->relu)
        return FAIL(STATUS_INVALID,
                    "cuda device: a convolution between layers has no relu and a kernel inside its "
                    "input; not %dx%d on %dx%d",
                    s->kernel, s->kernel, s->height, s->width);
    if (s->channels % CHANNELS_MULTIPLE != 0 || s->out_channels % CHANNELS_MULTIPLE != 0 ||
        s->channels < 1 || s->out_channels < 1 || s->channels > MAX_CHANNELS ||
        s->out_channels > MAX_CHANNELS)
        return FAIL(STATUS_INVALID,
                    "cuda device: a convolution between layers has multiples of %d channels up to "
                    "%d; not %d -> %d",
                    CHANNELS_MULTIPLE, MAX_CHANNELS, s->channels, s->out_channels);
    return STATUS_OK;
}

static status open_first(plan_state *p)
{
    return conv_sums_create(p->dev, (int)p->weights + p->s.out_channels, CONV_FIRST_BLOCKS,
                            &p->sums);
}

/* Room for the bias gradient that the pool's backward pass sums. */
static status reserve_pool_sums(device *dev, int channels)
{
    cuda_state *s = cuda_state_of(dev);
    cuda_pool_sums *sums = &s->pool_sums;
    if (channels <= sums->room)
        return STATUS_OK;
    size_t count = (size_t)channels * (size_t)(CUDA_POOL_BLOCKS * s->multiprocessors);
    cuda_free(dev, sums->partial);
    *sums = (cuda_pool_sums){0};
    TRY(cuda_alloc(dev, sizeof *sums->partial * count, (void **)&sums->partial));
    sums->room = channels;
    return STATUS_OK;
}

static status open_cudnn(plan_state *p)
{
    TRY(reserve_pool_sums(p->dev, p->s.out_channels));
    TRY(conv_sums_create(p->dev, p->s.out_channels, CONV_SUMS_COLUMNS_BLOCKS, &p->sums));
    TRY(cuda_alloc(p->dev, sizeof(float) * p->weights, &p->dw));
    return conv_cudnn_create(p->dev, &p->s, &p->cudnn);
}

status cuda_conv2d_create(device *dev, const conv2d_shape *shape, int max_n, conv2d **out)
{
    TRY(check(shape, max_n));
    plan_state *p = NULL;
    TRY(memory_alloc(sizeof *p, (void **)&p));
    *p = (plan_state){
        .dev = dev,
        .s = *shape,
        .out_h = shape->height - shape->kernel + 1,
        .out_w = shape->width - shape->kernel + 1,
        .weights = (size_t)(shape->out_channels * shape->channels * shape->kernel * shape->kernel),
    };
    status st = shape->plain_input ? open_first(p) : open_cudnn(p);
    if (st != STATUS_OK) {
        cuda_conv2d_destroy((conv2d *)(void *)p);
        return st;
    }
    *out = (conv2d *)(void *)p;
    return STATUS_OK;
}

void cuda_conv2d_destroy(conv2d *plan)
{
    if (plan == NULL)
        return;
    plan_state *p = state(plan);
    conv_cudnn_destroy(p->cudnn);
    conv_sums_free(p->dev, &p->sums);
    cuda_free(p->dev, p->dw);
    free(p);
}

/* (O, C, K, K) to (O, K, K, C), or back. */
static void reorder(const conv2d_shape *s, const float *from, float *to, bool import)
{
    int taps = s->kernel * s->kernel;
    for (int o = 0; o < s->out_channels; o++)
        for (int c = 0; c < s->channels; c++)
            for (int k = 0; k < taps; k++) {
                int plain = (o * s->channels + c) * taps + k;
                int ours = (o * taps + k) * s->channels + c;
                to[import ? ours : plain] = from[import ? plain : ours];
            }
}

status cuda_conv2d_import(conv2d *plan, const float *plain, float *weight)
{
    reorder(&state(plan)->s, plain, weight, true);
    return STATUS_OK;
}

status cuda_conv2d_export(conv2d *plan, const float *weight, float *plain)
{
    reorder(&state(plan)->s, weight, plain, false);
    return STATUS_OK;
}

static size_t rows_of(const plan_state *p, int n)
{
    return (size_t)n * (size_t)(p->out_h * p->out_w);
}

/* The whole batch, in pieces. *count = 0: there is no engine for it. */
static status run_all(plan_state *p, conv_pass pass, int n, const conv_arrays *arrays, int *count)
{
    for (int first = 0; first < n; first += *count) {
        TRY(conv_cudnn_run(p->cudnn, pass, n, first, arrays, count));
        if (*count == 0)
            break;
    }
    return STATUS_OK;
}

/* cuDNN adds the bias if it has an engine for that at this batch size and the bias, or its copy, is
 * aligned. */
status cuda_conv2d_forward(conv2d *plan, int n, const float *x, const float *weight,
                           const float *bias, float *y)
{
    plan_state *p = state(plan);
    if (p->cudnn == NULL) {
        conv_first_pass pass = {p->dev, &p->s, n};
        return conv_first_forward(&pass, x, weight, bias, y);
    }
    conv_arrays a = {x, cuda_half_weights(p->dev, weight), y, cuda_half_weights(p->dev, bias)};
    int count = 0;
    cuda_forget_pool_sums(p->dev, y);
    if ((uintptr_t)a.bias % CONV_ALIGNMENT == 0)
        TRY(run_all(p, CONV_PASS_FORWARD_BIAS, n, &a, &count));
    if (count > 0)
        return STATUS_OK;
    TRY(run_all(p, CONV_PASS_FORWARD, n, &a, &count));
    return conv_sums_add_bias(p->dev, bias, rows_of(p, n), p->s.out_channels, y);
}

/* cuDNN sets gradients in the activations' type. If another type or accumulation is wanted, they go
 * through p->dw. */
static status weights_by_cudnn(plan_state *p, int n, const float *x, const float *dy, float *dw,
                               bool accumulate)
{
    for (int first = 0, count = 0; first < n; first += count) {
        bool add = accumulate || first > 0, direct = !add && !cuda_is_half(p->dev);
        conv_arrays a = {.x = x, .w = direct ? dw : p->dw, .y = dy};
        TRY(conv_cudnn_run(p->cudnn, CONV_PASS_WEIGHTS, n, first, &a, &count));
        if (!direct)
            TRY(conv_sums_take(p->dev, p->dw, p->weights, dw, add));
    }
    return STATUS_OK;
}

/* From the pool's sums if they are of this dy (used once); else dy is read again. */
static status bias_gradient(plan_state *p, int n, const float *dy, const conv_gradient *out)
{
    cuda_pool_sums *pool = &cuda_state_of(p->dev)->pool_sums;
    size_t rows = rows_of(p, n);
    if (pool->dz != dy || pool->rows != rows || pool->channels != p->s.out_channels)
        return conv_sums_columns(p->dev, &p->sums, dy, rows, out);
    const conv_sums sums = {pool->partial, pool->blocks};
    pool->dz = NULL;
    return conv_sums_finish(p->dev, &sums, pool->blocks, out);
}

status cuda_conv2d_backward_weights(conv2d *plan, int n, const float *x, const float *y,
                                    const float *dy, const param_gradients *out)
{
    plan_state *p = state(plan);
    conv_gradient sums = {
        .db = out->db, .db_count = p->s.out_channels, .accumulate = out->accumulate};
    if (p->cudnn == NULL) {
        conv_first_pass pass = {p->dev, &p->s, n};
        sums.dw = out->dw;
        sums.dw_count = (int)p->weights;
        return conv_first_backward_weights(&pass, x, y, dy, &p->sums, &sums);
    }
    TRY(weights_by_cudnn(p, n, x, dy, out->dw, out->accumulate));
    return bias_gradient(p, n, dy, &sums);
}

status cuda_conv2d_backward_data(conv2d *plan, int n, const float *weight, const float *y,
                                 const float *dy, float *dx)
{
    (void)y;
    plan_state *p = state(plan);
    ASSERT(p->cudnn != NULL);
    conv_arrays a = {.x = dx, .w = cuda_half_weights(p->dev, weight), .y = dy};
    int count = 0;
    return run_all(p, CONV_PASS_DATA, n, &a, &count);
}
