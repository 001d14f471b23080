/* Softmax cross-entropy. A thread has one row at a time. Each block sums its rows' losses in a
 * fixed tree and stores the partial sum. The last block to finish sums the partials in the same
 * tree. So the order of summation does not depend on the hardware. */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

constexpr unsigned THREADS = 128, WARP = 32, WARPS = THREADS / WARP;
constexpr unsigned MAX_BLOCKS = THREADS; /* the last block sums one partial per thread */
constexpr unsigned ALL_LANES = 0xffffffffu;

struct loss_partial {
    double loss;
    int64_t correct;
};

struct loss_scratch {
    loss_partial partials[MAX_BLOCKS];
    unsigned ticket; /* counts blocks that are done; the last one resets it to 0 */
};

struct loss_job {
    loss_input in;
    const step_state *state; /* NULL if no gradient is wanted */
    score *totals;
    loss_scratch *scratch;
};

/* The sum over the block's threads, in thread 0. Between two calls the block meets at a barrier. */
static __device__ loss_partial block_sum(loss_partial mine)
{
    SHARED(double, losses, WARPS);
    SHARED(int64_t, hits, WARPS);
    int correct = (int)mine.correct; /* a launch has less than 2^31 rows */
    for (unsigned step = WARP / 2; step > 0; step /= 2) {
        mine.loss += __shfl_down_sync(ALL_LANES, mine.loss, step);
        correct += __shfl_down_sync(ALL_LANES, correct, step);
    }
    if (threadIdx.x % WARP == 0) {
        losses[threadIdx.x / WARP] = mine.loss;
        hits[threadIdx.x / WARP] = correct;
    }
    __syncthreads();
    loss_partial sum = {0.0, 0};
    for (unsigned w = 0; w < WARPS; w++) {
        sum.loss += losses[w];
        sum.correct += hits[w];
    }
    return sum;
}

static __device__ void add_to_totals(const loss_job &job, const loss_partial &sum)
{
    job.totals->loss_sum += sum.loss;
    double earlier = job.in.before > 0 ? job.totals->last_loss * job.in.before : 0;
    job.totals->last_loss = (earlier + sum.loss) / (job.in.before + job.in.n);
    job.totals->correct += sum.correct;
}

/* Whether this block is the last one; then it sees all partials. */
static __device__ bool block_is_last(loss_scratch *scratch)
{
    SHARED(unsigned, last, 1);
    if (threadIdx.x == 0) {
        __threadfence();
        last[0] = atomicInc(&scratch->ticket, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    return last[0] != 0;
}

/* One row: its loss and hit; its gradient into dlogits unless NULL. CLASSES 0: as many as the job
 * has. */
template <typename T, int CLASSES>
static __device__ void row_loss(const loss_job &job, int i, float scale, T *dlogits,
                                loss_partial *sum)
{
    int classes = CLASSES > 0 ? CLASSES : job.in.classes, label = job.in.labels[i], best = 0;
    const float *__restrict__ row = job.in.logits + (size_t)i * (size_t)classes;
    float largest = row[0], total = 0.0f;
    float kept[CLASSES > 0 ? CLASSES : 1]; /* known classes' exponentials, in registers */
    UNROLL
    for (int c = 1; c < classes; c++)
        if (row[c] > largest) {
            largest = row[c];
            best = c;
        }
    UNROLL
    for (int c = 0; c < classes; c++) {
        float exponential = expf(row[c] - largest);
        if (CLASSES > 0)
            kept[c] = exponential;
        total += exponential;
    }
    sum->loss += (double)logf(total) - (double)(row[label] - largest);
    float even = job.in.smoothing / (float)classes, own = 1.0f - job.in.smoothing + even;
    if (job.in.smoothing > 0.0f) {
        float all = 0.0f;
        UNROLL
        for (int c = 0; c < classes; c++)
            all += row[c];
        sum->loss += (double)(job.in.smoothing * (row[label] - all / (float)classes));
    }
    sum->correct += best == label;
    if (dlogits == nullptr)
        return;
    T *__restrict__ gradient = dlogits + (size_t)i * (size_t)classes;
    UNROLL
    for (int c = 0; c < classes; c++) {
        float softmax = (CLASSES > 0 ? kept[c] : expf(row[c] - largest)) / total;
        gradient[c] = from_float<T>((softmax - (c == label ? own : even)) * scale);
    }
}

template <typename T, int CLASSES>
static __global__ void cross_entropy_kernel(loss_job job, T *dlogits)
{
    float scale = 0.0f;
    if (dlogits != nullptr)
        scale = job.state->plan.grad_scale * step_loss_scale(job.state);
    loss_partial mine = {0.0, 0};
    for (size_t i = thread_index(); i < (size_t)job.in.n; i += thread_count())
        row_loss<T, CLASSES>(job, (int)i, scale, dlogits, &mine);
    loss_partial sum = block_sum(mine);
    if (gridDim.x == 1) {
        if (threadIdx.x == 0)
            add_to_totals(job, sum);
        return;
    }
    if (threadIdx.x == 0)
        job.scratch->partials[blockIdx.x] = sum;
    if (!block_is_last(job.scratch))
        return;
    mine = {0.0, 0};
    if (threadIdx.x < gridDim.x)
        mine = job.scratch->partials[threadIdx.x];
    sum = block_sum(mine);
    if (threadIdx.x == 0)
        add_to_totals(job, sum);
}

size_t cuda_loss_scratch_bytes(void)
{
    return sizeof(loss_scratch);
}

template <typename T> static status launch(const cuda_state *s, const loss_job &job, T *dlogits)
{
    unsigned blocks = blocks_for((size_t)job.in.n, THREADS);
    blocks = blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS;
    if (job.in.classes == 10)
        LAUNCH(s->stream, blocks, THREADS, (cross_entropy_kernel<T, 10>), job, dlogits);
    else
        LAUNCH(s->stream, blocks, THREADS, (cross_entropy_kernel<T, 0>), job, dlogits);
    return CUDA_CALL(cudaGetLastError());
}

status cuda_cross_entropy(device *dev, const loss_input *in, const step_state *state, score *totals,
                          float *dlogits)
{
    const cuda_state *s = cuda_state_of(dev);
    loss_job job = {*in, state, totals, static_cast<loss_scratch *>(s->loss_scratch)};
    return with_element(dev->precision, [&](auto *kind) {
        return launch(s, job, reinterpret_cast<decltype(kind)>(dlogits));
    });
}
