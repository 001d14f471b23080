#include "kernels/cuda/conv_cudnn.h"

#include "base/memory.h"
#include "kernels/cuda/choices.h"
#include "kernels/cuda/conv_choose.h"
#include "kernels/cuda/wait.h"

#include <stdio.h>
#include <stdlib.h>

/* Timing the first few engines may find a faster one, but then bits would depend on what else the
 * GPU does meanwhile. So cuDNN's first choice is taken, unless $MNIST_DDP_CUDA_AUTOTUNE says how
 * many to time. */
static const char AUTOTUNE[] = "MNIST_DDP_CUDA_AUTOTUNE";

enum { MAX_TRIES = 16, TIMED_RUNS = 3 };

typedef struct conv_choices {
    conv_choice *all;
    int count, capacity;
} conv_choices;

struct conv_cudnn {
    device *dev;
    conv2d_shape shape;
    cudnnDataType_t type;
    size_t x_bytes, y_bytes; /* of one image */
    int tries;               /* engines that are timed */
    conv_choices choices[CONV_PASSES];
};

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

status conv_cudnn_create(device *dev, const conv2d_shape *shape, conv_cudnn **out)
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

void conv_cudnn_destroy(conv_cudnn *c)
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

status conv_cudnn_run(conv_cudnn *c, conv_pass pass, int n, int first, const conv_arrays *arrays,
                      int *count)
{
    return named(c, pass, n, run(c, pass, n, first, arrays, count));
}
