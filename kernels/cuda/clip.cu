/* Clipping gradients by their norm. The first launch leaves a sum of squares per block, the second
 * adds them up, in each of its blocks alike, and scales. How many blocks there are depends on the
 * number of gradients alone, and so does the order of summation. */
#include "kernels/clip_math.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

constexpr unsigned THREADS = 256, WARP = 32, WARPS = THREADS / WARP;
constexpr unsigned MAX_BLOCKS = 128; /* a block has a thread for each partial sum */
constexpr unsigned ALL_LANES = 0xffffffffu;

/* The sum over the block's threads, in all of them. */
static __device__ double block_sum(double mine)
{
    SHARED(double, sums, WARPS);
    for (unsigned step = WARP / 2; step > 0; step /= 2)
        mine += __shfl_down_sync(ALL_LANES, mine, step);
    if (threadIdx.x % WARP == 0)
        sums[threadIdx.x / WARP] = mine;
    __syncthreads();
    double sum = 0.0;
    for (unsigned w = 0; w < WARPS; w++)
        sum += sums[w];
    return sum;
}

static __global__ void squares_kernel(const float *grad, size_t count, double *partials)
{
    double mine = 0.0;
    for (size_t i = thread_index(); i < count; i += thread_count())
        mine += (double)grad[i] * (double)grad[i];
    double sum = block_sum(mine);
    if (threadIdx.x == 0)
        partials[blockIdx.x] = sum;
}

/* As many blocks as the kernel before had. */
static __global__ void clip_kernel(gradient_clip clip, const double *partials,
                                   const step_state *state)
{
    double sum = block_sum(threadIdx.x < gridDim.x ? partials[threadIdx.x] : 0.0);
    double norm = sqrt(sum) / (double)step_loss_scale(state);
    float factor = clip_factor(norm, clip.max_norm);
    if (thread_index() == 0)
        *clip.norm = norm;
    if (!clip_changes(factor))
        return;
    for (size_t i = thread_index(); i < clip.count; i += thread_count())
        clip.grad[i] *= factor;
}

status cuda_clip_gradients(device *dev, const gradient_clip *clip, const step_state *state)
{
    const cuda_state *s = cuda_state_of(dev);
    double *partials = static_cast<double *>(s->workspace);
    unsigned blocks = blocks_for(clip->count, THREADS);
    blocks = blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS;
    LAUNCH(s->stream, blocks, THREADS, squares_kernel, clip->grad, clip->count, partials);
    TRY(CUDA_CALL(cudaGetLastError()));
    LAUNCH(s->stream, blocks, THREADS, clip_kernel, *clip, partials, state);
    return CUDA_CALL(cudaGetLastError());
}
