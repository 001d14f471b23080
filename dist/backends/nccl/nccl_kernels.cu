/* Only one such kernel runs at a time, as the backend has one stream for them, so counting needs no
 * atomics. It goes on in device memory: reading the host's would take a round trip over the bus. */
#include "dist/backends/nccl/nccl_kernels.h"

#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

static const unsigned THREADS = 256, MAX_BLOCKS = 1024;

static __device__ void count_entered(nccl_progress *counts, nccl_progress *progress, nccl_turn turn)
{
    bool of_all = (turn.what >> NCCL_WHAT_KIND_SHIFT & 0x7f) < COLLECTIVE_SEND;
    uint64_t entered = counts->entered + 1, number = counts->number + (of_all ? 1 : 0);
    counts->entered = entered;
    counts->number = number;
    volatile nccl_progress *seen_by_host = progress;
    seen_by_host->what = turn.what;
    seen_by_host->peers = turn.peers;
    seen_by_host->number = number;
    __threadfence_system(); /* who sees `entered` sees what was entered */
    seen_by_host->entered = entered;
}

static __global__ void enter(nccl_progress *counts, nccl_progress *progress, nccl_turn turn)
{
    count_entered(counts, progress, turn);
}

static __global__ void leave(nccl_progress *counts, nccl_progress *progress)
{
    uint64_t left = counts->left + 1;
    counts->left = left;
    volatile nccl_progress *seen_by_host = progress;
    seen_by_host->left = left;
    __threadfence_system();
}

/* Scaling in three parts: single elements until both arrays are aligned to 16 bytes, then packs,
 * then the single elements that are left. Arrays of different alignment are all single elements. */
template <typename T> struct scaled_job {
    T *out;
    const T *in;
    size_t count, head, packs;
    float factor;
};

/* 16-bit types are multiplied as float. */
template <typename T> static __device__ inline T scaled(float factor, T x)
{
    return from_float<T>(factor * to_float(x));
}

template <> __device__ inline double scaled(float factor, double x)
{
    return double(factor) * x;
}

template <typename T>
static __device__ inline void scale_each(scaled_job<T> job, size_t from, size_t to)
{
    for (size_t i = from + thread_index(); i < to; i += thread_count())
        job.out[i] = scaled(job.factor, job.in[i]);
}

template <typename T>
static __global__ void enter_scaled(nccl_progress *counts, nccl_progress *progress, nccl_turn turn,
                                    scaled_job<T> job)
{
    if (thread_index() == 0)
        count_entered(counts, progress, turn);
    scale_each(job, 0, job.head);
    for (size_t i = thread_index(); i < job.packs; i += thread_count()) {
        size_t at = job.head + i * PACKED<T>;
        pack<T, PACKED<T>> x = load_pack<PACKED<T>>(job.in + at);
        UNROLL
        for (int k = 0; k < PACKED<T>; k++)
            x.v[k] = scaled(job.factor, x.v[k]);
        store_pack(job.out + at, x);
    }
    scale_each(job, job.head + job.packs * PACKED<T>, job.count);
}

template <typename T>
static status launch_scaled(const nccl_counters *counters, nccl_turn turn, const collective *c,
                            cudaStream_t stream)
{
    const T *in = static_cast<const T *>(c->in);
    T *out = static_cast<T *>(c->out);
    size_t count = c->count;
    scaled_job<T> job = {out, in, count, count, 0, c->prescale};
    size_t beside = (uintptr_t)in % 16; /* both are aligned to their elements */
    if ((uintptr_t)out % 16 == beside) {
        size_t head = beside == 0 ? 0 : (16 - beside) / sizeof(T);
        job.head = head < count ? head : count;
        job.packs = (count - job.head) / PACKED<T>;
    }
    size_t items = job.packs > job.head ? job.packs : job.head;
    size_t blocks = (items + THREADS - 1) / THREADS;
    unsigned used = blocks < 1 ? 1 : blocks < MAX_BLOCKS ? (unsigned)blocks : MAX_BLOCKS;
    LAUNCH(stream, used, THREADS, (enter_scaled<T>), counters->counts, counters->progress, turn,
           job);
    return CUDA_CALL(cudaGetLastError());
}

status nccl_kernels_enter(const nccl_counters *counters, nccl_turn turn, cudaStream_t stream)
{
    LAUNCH(stream, 1, 1, enter, counters->counts, counters->progress, turn);
    return CUDA_CALL(cudaGetLastError());
}

status nccl_kernels_leave(const nccl_counters *counters, cudaStream_t stream)
{
    LAUNCH(stream, 1, 1, leave, counters->counts, counters->progress);
    return CUDA_CALL(cudaGetLastError());
}

status nccl_kernels_enter_scaled(const nccl_counters *counters, nccl_turn turn, const collective *c,
                                 cudaStream_t stream)
{
    switch (c->type) {
    case DTYPE_F64:
        return launch_scaled<double>(counters, turn, c, stream);
    case DTYPE_BF16:
        return launch_scaled<__nv_bfloat16>(counters, turn, c, stream);
    case DTYPE_F16:
        return launch_scaled<__half>(counters, turn, c, stream);
    default:
        return launch_scaled<float>(counters, turn, c, stream);
    }
}

status nccl_kernels_load(nccl_progress *scratch, cudaStream_t stream)
{
    nccl_counters aside = {scratch, scratch};
    TRY(nccl_kernels_enter(&aside, {}, stream));
    collective nothing = {};
    for (dtype type : {DTYPE_F32, DTYPE_F64, DTYPE_BF16, DTYPE_F16}) {
        nothing.type = type;
        TRY(nccl_kernels_enter_scaled(&aside, {}, &nothing, stream));
    }
    return nccl_kernels_leave(&aside, stream);
}
