/* What the files of the cuda device share. */
#ifndef MNIST_DDP_KERNELS_CUDA_CUDA_STATE_H
#define MNIST_DDP_KERNELS_CUDA_CUDA_STATE_H

#include "kernels/cuda/cuda_call.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The 16-bit copy of a parameter arena: weight w of the arena is at copy + (w - parameters). */
typedef struct cuda_half_copy {
    struct cuda_half_copy *next;
    const float *parameters;
    size_t count;
    void *copy;
} cuda_half_copy;

/* The relu mask of a linear layer, as cuBLASLt's epilogue writes it: a bit per output, set if it is
 * above 0. Part of the layer's plan. */
typedef struct cuda_relu_mask {
    struct cuda_relu_mask *next;
    const float *y; /* the output that it belongs to; NULL: the last forward pass wrote none */
    int features;
    int64_t ld; /* bits from one sample to the next */
    void *bits;
} cuda_relu_mask;

/* The first stage (conv_kernels.h) of a convolution's bias gradient. pool_backward sums it while it
 * writes dz, so that dz is not read again. */
typedef struct cuda_pool_sums {
    float *partial; /* (channels, blocks); NULL: not allocated */
    int room;       /* channels that `partial` has room for */
    const void *dz; /* the array that was summed; NULL: none, or overwritten since */
    size_t rows;
    int channels;
    unsigned blocks;
} cuda_pool_sums;

enum { CUDA_POOL_BLOCKS = 8 }; /* pool_backward's, per multiprocessor */

/* Memory of the GPU, or pinned memory of the host: handed out, or kept for the next (memory.c). */
typedef struct cuda_block {
    struct cuda_block *next;
    void *memory;
    size_t size_bytes;
    bool pinned, in_use;
    bool is_old; /* it was not in use when keep_freed was called, and has not been since */
} cuda_block;

typedef struct cuda_state {
    struct cuda_state *next_given_up;
    int index; /* the GPU */
    int multiprocessors;
    cudaStream_t stream; /* all kernels are enqueued here; also dev->stream */
    cudaStream_t copies; /* for copy_out */
    cudaEvent_t fence;   /* makes `copies` wait for `stream` */
    cublasLtHandle_t blas;
    cudnnHandle_t dnn; /* NULL until a convolution is made; bound to `stream` */
    cuda_block *blocks;
    bool keeps_freed; /* since the first keep_freed */
    void *workspace;  /* shared by all cuBLASLt calls and clip.cu, which run one after the other */
    size_t workspace_bytes;
    void *conv_workspace; /* shared by all cuDNN calls; NULL as long as dnn is */
    size_t conv_workspace_bytes;
    void *loss_scratch;          /* loss.cu's */
    cuda_half_copy *half_copies; /* PRECISION_BF16 and PRECISION_F16 only */
    cuda_relu_mask *masks;       /* all linear layers' */
    cuda_pool_sums pool_sums;
    device_choice *choices; /* choices.h */
    int choice_count;
    bool capturing;  /* between capture_begin and capture_end */
    bool scale_loss; /* as the last begin_step said */
    bool given_up;   /* enqueued work hangs: no call waits for it any more */
} cuda_state;

/* If cuDNN wants more workspace, a batch is cut into pieces. Some float32 engines want 230 KiB per
 * image of the CNN. A large GPU's workspace is enough for 1024 images, which keeps all its
 * multiprocessors busy. */
enum {
    CUDA_WORKSPACE_BYTES = 32 << 20,
    CUDA_LARGE_CONV_WORKSPACE_BYTES = 256 << 20,
    CUDA_LARGE_GPU_GIB = 8
};

static inline cuda_state *cuda_state_of(const device *dev)
{
    return (cuda_state *)dev->state;
}

/* Whether activations are 16 bits wide. */
static inline bool cuda_is_half(const device *dev)
{
    return dev->precision == PRECISION_BF16 || dev->precision == PRECISION_F16;
}

/* The type of activations. */
static inline cudaDataType_t cuda_activation_type(const device *dev)
{
    return dev->precision == PRECISION_BF16  ? CUDA_R_16BF
           : dev->precision == PRECISION_F16 ? CUDA_R_16F
                                             : CUDA_R_32F;
}

/* Call it before `memory` is overwritten. */
static inline void cuda_forget_pool_sums(const device *dev, const void *memory)
{
    if (cuda_state_of(dev)->pool_sums.dz == memory)
        cuda_state_of(dev)->pool_sums.dz = NULL;
}

/* Makes the device's GPU this thread's current one. */
static inline status cuda_use(const device *dev)
{
    return CUDA_CALL(cudaSetDevice(cuda_state_of(dev)->index));
}

/* What a library call reads for these parameters: the float32 arena itself, or the 16-bit copy that
 * begin_forward has made. */
const void *cuda_half_weights(const device *dev, const float *parameters);

/* Frees the copy of the arena at `memory`, if there is one. */
void cuda_half_copy_drop(device *dev, const void *memory);

/* Memory as alloc of the device's table, for tensors and for the device's own use. cuda_free does
 * not free the 16-bit copy of an arena; the table's free does. */
status cuda_alloc(device *dev, size_t size_bytes, void **out);
void cuda_free(device *dev, void *memory);
/* Of a device that is closed: frees what is kept. What is handed out is lost. */
void cuda_free_blocks(device *dev);

#ifdef __cplusplus
}
#endif
#endif
