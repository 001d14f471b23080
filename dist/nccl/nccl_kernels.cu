/* Only one such kernel runs at a time, as the backend has one stream for them, so counting needs no
 * atomics. It goes on in device memory: reading the host's would take a round trip over the bus. */
#include "dist/nccl/nccl_kernels.h"

#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/launch.cuh"

static const unsigned THREADS = 256, MAX_BLOCKS = 1024;

static __device__ void count_entered(nccl_progress *counts, nccl_progress *progress, uint64_t what)
{
    uint64_t kind = what >> NCCL_WHAT_KIND_SHIFT;
    bool of_all = kind != COLLECTIVE_SEND && kind != COLLECTIVE_RECV;
    uint64_t entered = counts->entered + 1, number = counts->number + (of_all ? 1 : 0);
    counts->entered = entered;
    counts->number = number;
    volatile nccl_progress *seen_by_host = progress;
    seen_by_host->what = what;
    seen_by_host->number = number;
    seen_by_host->entered = entered;
    __threadfence_system();
}

static __global__ void enter(nccl_progress *counts, nccl_progress *progress, uint64_t what)
{
    count_entered(counts, progress, what);
}

static __global__ void leave(nccl_progress *counts, nccl_progress *progress)
{
    uint64_t left = counts->left + 1;
    counts->left = left;
    volatile nccl_progress *seen_by_host = progress;
    seen_by_host->left = left;
    __threadfence_system();
}

template <typename T>
static __global__ void enter_scaled(nccl_progress *counts, nccl_progress *progress, uint64_t what,
                                    T *out, const T *in, size_t count, T factor)
{
    size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t step = (size_t)gridDim.x * blockDim.x;
    if (first == 0)
        count_entered(counts, progress, what);
    for (size_t i = first; i < count; i += step)
        out[i] = factor * in[i];
}

template <typename T>
static status launch_scaled(const nccl_counters *counters, uint64_t what, T *out, const T *in,
                            size_t count, T factor, cudaStream_t stream)
{
    size_t blocks = (count + THREADS - 1) / THREADS;
    unsigned used = blocks < MAX_BLOCKS ? (unsigned)blocks : MAX_BLOCKS;
    LAUNCH(stream, used, THREADS, (enter_scaled<T>), counters->counts, counters->progress, what,
           out, in, count, factor);
    return CUDA_CALL(cudaGetLastError());
}

status nccl_kernels_enter(const nccl_counters *counters, uint64_t what, cudaStream_t stream)
{
    LAUNCH(stream, 1, 1, enter, counters->counts, counters->progress, what);
    return CUDA_CALL(cudaGetLastError());
}

status nccl_kernels_leave(const nccl_counters *counters, cudaStream_t stream)
{
    LAUNCH(stream, 1, 1, leave, counters->counts, counters->progress);
    return CUDA_CALL(cudaGetLastError());
}

status nccl_kernels_enter_f32(const nccl_counters *counters, uint64_t what, float *out,
                              const float *in, size_t count, float factor, cudaStream_t stream)
{
    return launch_scaled(counters, what, out, in, count, factor, stream);
}

status nccl_kernels_enter_f64(const nccl_counters *counters, uint64_t what, double *out,
                              const double *in, size_t count, double factor, cudaStream_t stream)
{
    return launch_scaled(counters, what, out, in, count, factor, stream);
}
