#include "base/memory.h"
#include "kernels/cuda/choices.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/wait.h"

#include <stdio.h>
#include <stdlib.h>

static void destroy(device *dev);

/* A parameter arena takes its 16-bit copy along. */
static void free_with_half_copy(device *dev, void *memory)
{
    cuda_half_copy_drop(dev, memory);
    cuda_free(dev, memory);
}

static const accelerator_ops cuda_accelerator = {
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .alloc_pinned = cuda_alloc_pinned,
    .free_pinned = cuda_free_pinned,
    .keep_freed = cuda_keep_freed,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .timer_create = cuda_timer_create,
    .event_record = cuda_event_record,
    .event_elapsed = cuda_event_elapsed,
    .copy_out = cuda_copy_out,
    .commit_offer = cuda_commit_offer,
    .commit_take = cuda_commit_take,
    .event_wait = cuda_event_wait,
    .recover = cuda_recover,
    .copy_in = cuda_copy_in,
    .narrow = cuda_narrow,
    .widen = cuda_widen,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_destroy = cuda_graph_destroy,
};

static const device_ops cuda_ops = {
    .name = "cuda",
    .destroy = destroy,
    .choice = cuda_choice,
    .alloc = cuda_alloc,
    .free = free_with_half_copy,
    .upload = cuda_upload,
    .download = cuda_download,
    .copy = cuda_copy,
    .synchronize = cuda_synchronize,
    .accelerator = &cuda_accelerator,
    .begin_step = cuda_begin_step,
    .gather = cuda_gather,
    .begin_forward = cuda_begin_forward,
    .conv2d_create = cuda_conv2d_create,
    .conv2d_destroy = cuda_conv2d_destroy,
    .conv2d_import = cuda_conv2d_import,
    .conv2d_export = cuda_conv2d_export,
    .conv2d_forward = cuda_conv2d_forward,
    .conv2d_backward_weights = cuda_conv2d_backward_weights,
    .conv2d_backward_data = cuda_conv2d_backward_data,
    .pool_forward = cuda_pool_forward,
    .pool_backward = cuda_pool_backward,
    .linear_create = cuda_linear_create,
    .linear_destroy = cuda_linear_destroy,
    .linear_import = cuda_linear_import,
    .linear_export = cuda_linear_export,
    .linear_forward = cuda_linear_forward,
    .linear_finish = cuda_linear_finish,
    .linear_backward_weights = cuda_linear_backward_weights,
    .linear_backward_data = cuda_linear_backward_data,
    .cross_entropy = cuda_cross_entropy,
    .clip_gradients = cuda_clip_gradients,
    .sgd_step = cuda_sgd_step,
    .adam_step = cuda_adam_step,
    .adadelta_step = cuda_adadelta_step,
};

static status count(int *out, char *model)
{
    int found = 0;
    struct cudaDeviceProp properties;
    TRY(CUDA_CALL(cudaGetDeviceCount(&found)));
    if (found < 1)
        return CUDA_CALL(cudaErrorNoDevice);
    if (model != NULL) {
        TRY(CUDA_CALL(cudaGetDeviceProperties(&properties, 0)));
        snprintf(model, DEVICE_MODEL_BYTES, "%.64s", properties.name);
    }
    *out = found;
    return STATUS_OK;
}

static status refuse_index(int index, int n)
{
    char names[512] = "";
    size_t used = 0;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; i < n && used < sizeof names; i++) {
        struct cudaDeviceProp properties;
        TRY(CUDA_CALL(cudaGetDeviceProperties(&properties, i)));
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%d %.64s", i > 0 ? ", " : "",
                                 i, properties.name);
    }
    return FAIL(STATUS_INVALID, "there is no GPU %d; there are: %s%s%.64s", index, names,
                visible != NULL ? "; CUDA_VISIBLE_DEVICES is " : "",
                visible != NULL ? visible : "");
}

/* As nvidia-smi spells it. */
static void write_uuid(const struct cudaDeviceProp *properties, char *out)
{
    const unsigned char *b = (const unsigned char *)properties->uuid.bytes;
    snprintf(out, DEVICE_ID_BYTES,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
}

static status look_at(const device_options *options, device *dev)
{
    static const char *const names[] = {"f32", "tf32", "bf16", "fp16"};
    struct cudaDeviceProp properties;
    TRY(CUDA_CALL(cudaGetDeviceProperties(&properties, options->index)));
    bool needs_8 = options->precision == PRECISION_TF32 || options->precision == PRECISION_BF16;
    if (needs_8 && properties.major < 8)
        return FAIL(STATUS_INVALID,
                    "%s needs a GPU of compute capability 8.0; GPU %d, %.64s, is %d.%d",
                    names[options->precision], options->index, properties.name, properties.major,
                    properties.minor);
    cuda_state_of(dev)->index = options->index;
    cuda_state_of(dev)->multiprocessors = properties.multiProcessorCount;
    cuda_state_of(dev)->conv_workspace_bytes = properties.totalGlobalMem >> 30 >= CUDA_LARGE_GPU_GIB
                                                   ? CUDA_LARGE_CONV_WORKSPACE_BYTES
                                                   : CUDA_WORKSPACE_BYTES;
    write_uuid(&properties, dev->id);
    snprintf(dev->description, sizeof dev->description, "cuda:%d %.64s (%s)", options->index,
             properties.name, dev->id);
    return STATUS_OK;
}

static status start(device *dev)
{
    cuda_state *s = cuda_state_of(dev);
    TRY(cuda_use(dev));
    TRY(CUDA_CALL(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking)));
    TRY(CUDA_CALL(cudaStreamCreateWithFlags(&s->copies, cudaStreamNonBlocking)));
    TRY(CUDA_CALL(cudaEventCreateWithFlags(&s->fence, cudaEventDisableTiming)));
    TRY(CUBLASLT_CALL(cublasLtCreate(&s->blas)));
    TRY(cuda_alloc(dev, CUDA_WORKSPACE_BYTES, &s->workspace));
    s->workspace_bytes = CUDA_WORKSPACE_BYTES;
    TRY(cuda_alloc(dev, cuda_loss_scratch_bytes(), &s->loss_scratch));
    dev->stream = (device_stream *)s->stream;
    return STATUS_OK;
}

static void release(cuda_state *s)
{
    if (s->dnn != NULL)
        (void)cudnnDestroy(s->dnn);
    if (s->blas != NULL)
        (void)cublasLtDestroy(s->blas);
    if (s->fence != NULL)
        (void)cudaEventDestroy(s->fence);
    if (s->copies != NULL)
        (void)cudaStreamDestroy(s->copies);
    if (s->stream != NULL)
        (void)cudaStreamDestroy(s->stream);
}

/* Freeing resources of a GPU that was given up would block. They are kept until the process ends,
 * in a list that leak checkers can see. */
static void hold(cuda_state *s)
{
    static cuda_state *held;
    s->next_given_up = held;
    held = s;
}

static void destroy(device *dev)
{
    cuda_state *s = cuda_state_of(dev);
    while (s->half_copies != NULL)
        cuda_half_copy_drop(dev, s->half_copies->parameters);
    cuda_free(dev, s->loss_scratch);
    cuda_free(dev, s->pool_sums.partial);
    cuda_free(dev, s->conv_workspace);
    cuda_free(dev, s->workspace);
    cuda_free_blocks(dev);
    cuda_forget_choices(dev);
    if (s->given_up) {
        hold(s);
        return;
    }
    release(s);
    free(s);
}

static status create(const device_options *options, device *dev)
{
    int n = 0;
    TRY(count(&n, NULL));
    if (options->index < 0 || options->index >= n)
        return refuse_index(options->index, n);
    TRY(memory_alloc(sizeof(cuda_state), &dev->state));
    dev->ops = &cuda_ops;
    status st = look_at(options, dev);
    if (st == STATUS_OK)
        st = start(dev);
    if (st != STATUS_OK)
        destroy(dev);
    return st;
}

const device_kind cuda_kind = {"cuda", create, count};
