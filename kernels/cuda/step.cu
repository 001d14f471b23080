/* The beginning of a step: its state and its batch. */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

constexpr unsigned THREADS = 256;
constexpr int RUN = 4; /* pixels of a thread */

static __global__ void begin_step_kernel(step_plan plan, step_state *state, float *stop_flag)
{
    step_begin(&plan, state, stop_flag);
}

status cuda_begin_step(device *dev, const step_plan *plan, step_state *state, float *stop_flag)
{
    cuda_state *s = cuda_state_of(dev);
    TRY(cuda_use(dev));
    s->scale_loss = plan->scale_loss;
    LAUNCH(s->stream, 1, 1, begin_step_kernel, *plan, state, stop_flag);
    return CUDA_CALL(cudaGetLastError());
}

static __global__ void commit_offer_kernel(step_vote vote, step_state *state)
{
    step_offer(&vote, state);
}

status cuda_commit_offer(device *dev, const step_vote *vote, step_state *state)
{
    LAUNCH(cuda_state_of(dev)->stream, 1, 1, commit_offer_kernel, *vote, state);
    return CUDA_CALL(cudaGetLastError());
}

static __global__ void commit_take_kernel(step_vote vote, step_state *state)
{
    step_take(&vote, state);
}

status cuda_commit_take(device *dev, const step_vote *vote, step_state *state)
{
    LAUNCH(cuda_state_of(dev)->stream, 1, 1, commit_take_kernel, *vote, state);
    return CUDA_CALL(cudaGetLastError());
}

struct gather_job {
    gather_source source;
    const step_state *state;
    uint32_t offset;
    unsigned n, runs; /* runs of one image */
    bool aligned;
    uint8_t *labels;
    uint32_t *samples;
};

/* The divisions are exact ones, in the order of the host's gather: the same bits. */
static __device__ inline float normalised(float pixel)
{
    return (pixel / 255.0f - 0.1307f) / 0.3081f;
}

template <typename T> static __global__ void gather_kernel(gather_job job, T *x)
{
    unsigned item = (unsigned)thread_index();
    unsigned i = item / job.runs, run = item % job.runs;
    if (i >= job.n)
        return;
    uint32_t sample = job.source.order[job.state->plan.first + job.offset + i];
    int pixels = job.source.pixels, at = (int)run * RUN;
    const uint8_t *image = job.source.images + (size_t)sample * (size_t)pixels;
    T *row = x + (size_t)i * (size_t)pixels;
    if (job.aligned) {
        pack<uint8_t, RUN> in = load_pack<RUN>(image + at);
        pack<T, RUN> out;
        for (int j = 0; j < RUN; j++)
            out.v[j] = from_float<T>(normalised(in.v[j]));
        store_pack(row + at, out);
    } else {
        for (int j = at; j < at + RUN && j < pixels; j++)
            row[j] = from_float<T>(normalised(image[j]));
    }
    if (run == 0) {
        job.labels[i] = job.source.labels[sample];
        job.samples[i] = sample;
    }
}

/* A block has one image. Its first thread draws what becomes of it. */
template <typename T> static __global__ void gather_augmented_kernel(gather_job job, T *x)
{
    SHARED(affine_map, map, 1);
    unsigned i = blockIdx.x;
    uint32_t sample = job.source.order[job.state->plan.first + job.offset + i];
    int pixels = job.source.pixels;
    const uint8_t *image = job.source.images + (size_t)sample * (size_t)pixels;
    T *row = x + (size_t)i * (size_t)pixels;
    if (threadIdx.x == 0) {
        affine drawn = augmentation_draw(&job.source.augment, sample, job.state->plan.epoch);
        map[0] = augmentation_map(&drawn);
        job.labels[i] = job.source.labels[sample];
        job.samples[i] = sample;
    }
    __syncthreads();
    for (int at = (int)threadIdx.x; at < pixels; at += (int)THREADS)
        row[at] = from_float<T>(normalised(
            augmentation_sample(image, &map[0], at % AUGMENTATION_SIDE, at / AUGMENTATION_SIDE)));
}

status cuda_gather(device *dev, const gather_source *source, const step_state *state,
                   uint32_t offset, int n, const gather_output *out)
{
    gather_job job = {};
    job.source = *source;
    job.state = state;
    job.offset = offset;
    job.n = (unsigned)n;
    job.runs = (unsigned)((source->pixels + RUN - 1) / RUN);
    job.aligned = source->pixels % RUN == 0 && are_aligned(source->images, out->x);
    job.labels = out->labels;
    job.samples = out->samples;
    TRY(cuda_use(dev));
    return with_element(dev->precision, [&](auto *kind) {
        using T = std::remove_pointer_t<decltype(kind)>;
        if (augmentation_is_on(&source->augment))
            LAUNCH(cuda_state_of(dev)->stream, job.n, THREADS, (gather_augmented_kernel<T>), job,
                   reinterpret_cast<T *>(out->x));
        else
            LAUNCH(cuda_state_of(dev)->stream, blocks_for((size_t)job.n * job.runs, THREADS),
                   THREADS, (gather_kernel<T>), job, reinterpret_cast<T *>(out->x));
        return CUDA_CALL(cudaGetLastError());
    });
}
