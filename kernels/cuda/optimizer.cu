/* The optimizers over flat arenas: one launch each, and one before it if a gradient may be
 * infinite. The formulas are those of kernels/optimizer_math.h. */
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

constexpr unsigned THREADS = 128;
constexpr int RUN = 4; /* elements of a thread: 16 bytes of each array */

/* The factors of a step that a rule reads. */
struct factors {
    float unscale; /* 1 / step_loss_scale, exact: the scale is a power of two */
    float lr, step_size, correction2_sqrt;
};

/* Each rule changes one parameter p with the gradient g and up to two states a, b. */
struct sgd_rule {
    static constexpr int STATES = 0;
    sgd_options o;
    __device__ void operator()(const factors &f, float g, float &p, float &, float &) const
    {
        g += o.weight_decay * p;
        p -= f.lr * g;
    }
};

struct momentum_rule {
    static constexpr int STATES = 1;
    sgd_options o;
    __device__ void operator()(const factors &f, float g, float &p, float &a, float &) const
    {
        g += o.weight_decay * p;
        a = o.momentum * a + g;
        p -= f.lr * (o.nesterov ? g + o.momentum * a : a);
    }
};

struct adam_rule {
    static constexpr int STATES = 2;
    adam_options o;
    __device__ void operator()(const factors &f, float g, float &p, float &a, float &b) const
    {
        if (o.decoupled)
            p *= 1.0f - f.lr * o.weight_decay;
        else
            g += o.weight_decay * p;
        a += (1.0f - o.beta1) * (g - a);
        b = o.beta2 * b + (1.0f - o.beta2) * g * g;
        p -= f.step_size * (a / (sqrtf(b) / f.correction2_sqrt + o.eps));
    }
};

struct adadelta_rule {
    static constexpr int STATES = 2;
    adadelta_options o;
    __device__ void operator()(const factors &f, float g, float &p, float &a, float &b) const
    {
        g += o.weight_decay * p;
        a = o.rho * a + (1.0f - o.rho) * g * g;
        float delta = sqrtf((b + o.eps) / (a + o.eps)) * g;
        b = o.rho * b + (1.0f - o.rho) * delta * delta;
        p -= f.lr * delta;
    }
};

static __device__ inline factors factors_of(const step_state *state)
{
    return {1.0f / step_loss_scale(state), state->plan.lr, state->adam_step_size,
            state->adam_correction2_sqrt};
}

template <typename Rule>
static __global__ void update_kernel(optimizer_slice all, bool aligned, const step_state *state,
                                     Rule rule)
{
    bool skipped = step_is_skipped(state);
    factors f = factors_of(state);
    size_t at = thread_index() * RUN;
    if (aligned && at + RUN <= all.count) {
        pack<float, RUN> g = load_pack<RUN>(all.grad + at), p = load_pack<RUN>(all.param + at);
        pack<float, RUN> a = {}, b = {};
        if (Rule::STATES > 0)
            a = load_pack<RUN>(all.state1 + at);
        if (Rule::STATES > 1)
            b = load_pack<RUN>(all.state2 + at);
        if (skipped) /* tested after the loads, so that their latencies overlap */
            return;
        UNROLL
        for (int j = 0; j < RUN; j++)
            rule(f, g.v[j] * f.unscale, p.v[j], a.v[j], b.v[j]);
        store_pack(all.param + at, p);
        if (Rule::STATES > 0)
            store_pack(all.state1 + at, a);
        if (Rule::STATES > 1)
            store_pack(all.state2 + at, b);
        return;
    }
    size_t end = skipped ? at : at + RUN < all.count ? at + RUN : all.count;
    for (; at < end; at++) {
        float none = 0.0f;
        rule(f, all.grad[at] * f.unscale, all.param[at], Rule::STATES > 0 ? all.state1[at] : none,
             Rule::STATES > 1 ? all.state2[at] : none);
    }
}

static __device__ inline bool is_finite(float x)
{
    return x - x == 0.0f;
}

/* All threads that find an infinity or a NaN store the same value. */
static __global__ void overflow_kernel(const float *grad, size_t count, bool aligned,
                                       step_state *state)
{
    if (!state->plan.scale_loss || state->commit.ended != 0)
        return;
    bool finite = true;
    size_t runs = aligned ? count / RUN : 0;
    for (size_t i = thread_index(); i < runs; i += thread_count()) {
        pack<float, RUN> g = load_pack<RUN>(grad + i * RUN);
        for (int j = 0; j < RUN; j++)
            finite = finite && is_finite(g.v[j]);
    }
    for (size_t i = runs * RUN + thread_index(); i < count; i += thread_count())
        finite = finite && is_finite(grad[i]);
    if (!finite)
        state->scaling.overflow = 1;
}

/* Without loss scaling in the last begin_step there is no check. So all steps that replay one graph
 * must have the same setting. */
static status find_overflow(device *dev, const optimizer_slice &all, step_state *state)
{
    constexpr unsigned BLOCKS_EACH = 8; /* per multiprocessor */
    const cuda_state *s = cuda_state_of(dev);
    if (!s->scale_loss)
        return STATUS_OK;
    unsigned blocks = blocks_for((all.count + RUN - 1) / RUN, THREADS);
    unsigned room = BLOCKS_EACH * (unsigned)s->multiprocessors;
    LAUNCH(s->stream, blocks < room ? blocks : room, THREADS, overflow_kernel, all.grad, all.count,
           are_aligned(all.grad), state);
    return CUDA_CALL(cudaGetLastError());
}

template <typename Rule>
static status step_with(device *dev, const optimizer_slice &all, step_state *state, Rule rule)
{
    if (all.count == 0)
        return STATUS_OK;
    TRY(find_overflow(dev, all, state));
    bool aligned = are_aligned(all.param, all.grad, all.state1, all.state2);
    LAUNCH(cuda_state_of(dev)->stream, blocks_for((all.count + RUN - 1) / RUN, THREADS), THREADS,
           (update_kernel<Rule>), all, aligned, state, rule);
    return CUDA_CALL(cudaGetLastError());
}

status cuda_sgd_step(device *dev, const optimizer_slice *slice, step_state *state,
                     const sgd_options *options)
{
    if (slice->state1 == nullptr)
        return step_with(dev, *slice, state, sgd_rule{*options});
    return step_with(dev, *slice, state, momentum_rule{*options});
}

status cuda_adam_step(device *dev, const optimizer_slice *slice, step_state *state,
                      const adam_options *options)
{
    return step_with(dev, *slice, state, adam_rule{*options});
}

status cuda_adadelta_step(device *dev, const optimizer_slice *slice, step_state *state,
                          const adadelta_options *options)
{
    return step_with(dev, *slice, state, adadelta_rule{*options});
}
