/* The optimizers' formulas, one element after the other, as torch.optim writes them. Included by
 * each host device, so that its compiler flags apply. All arrays are distinct. */
#ifndef MNIST_DDP_KERNELS_OPTIMIZER_MATH_H
#define MNIST_DDP_KERNELS_OPTIMIZER_MATH_H

#include "kernels/ops.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

/* What an optimizer keeps of a gradient that is no longer there decays until it is subnormal, and
 * rounding holds it there. Many processors take far longer to multiply such a number. None
 * changes a parameter: 0 stands for it. */
static inline float kept_state(float v)
{
    return fabsf(v) < FLT_MIN ? 0.0f : v;
}

typedef struct sgd_math {
    float lr, momentum, weight_decay;
    bool nesterov;
} sgd_math;

static inline sgd_math sgd_math_of(const sgd_options *o, const step_state *state)
{
    return (sgd_math){state->plan.lr, o->momentum, o->weight_decay, o->nesterov};
}

static inline void sgd_plain(float *restrict param, const float *restrict grad, size_t count,
                             const sgd_math m)
{
    for (size_t i = 0; i < count; i++) {
        float g = grad[i] + m.weight_decay * param[i];
        param[i] -= m.lr * g;
    }
}

/* The buffer starts as zeros: after the first step it is the gradient, as torch's. */
static inline void sgd_momentum(float *restrict param, const float *restrict grad,
                                float *restrict buffer, size_t count, const sgd_math m)
{
    float direct = m.nesterov ? 1.0f : 0.0f, through = m.nesterov ? m.momentum : 1.0f;
    for (size_t i = 0; i < count; i++) {
        float g = grad[i] + m.weight_decay * param[i];
        float b = kept_state(m.momentum * buffer[i] + g);
        buffer[i] = b;
        param[i] -= m.lr * (direct * g + through * b);
    }
}

typedef struct adam_math {
    float step_size; /* lr / (1 - beta1^step) */
    float beta1, beta2, eps;
    float correction2_sqrt; /* sqrt(1 - beta2^step) */
    bool decoupled;
    float weight_decay; /* 0 if decoupled */
    float keep;         /* 1 - lr * weight_decay; if decoupled */
} adam_math;

static inline adam_math adam_math_of(const adam_options *o, const step_state *state)
{
    return (adam_math){.step_size = state->adam_step_size,
                       .beta1 = o->beta1,
                       .beta2 = o->beta2,
                       .eps = o->eps,
                       .correction2_sqrt = state->adam_correction2_sqrt,
                       .decoupled = o->decoupled,
                       .weight_decay = o->decoupled ? 0.0f : o->weight_decay,
                       .keep = 1.0f - state->plan.lr * o->weight_decay};
}

static inline void adam(float *restrict param, const float *restrict grad, float *restrict exp_avg,
                        float *restrict exp_avg_sq, size_t count, const adam_math m)
{
    for (size_t i = 0; i < count; i++) {
        float g = grad[i] + m.weight_decay * param[i];
        float first = exp_avg[i] + (1.0f - m.beta1) * (g - exp_avg[i]);
        float second = m.beta2 * exp_avg_sq[i] + (1.0f - m.beta2) * g * g;
        exp_avg[i] = kept_state(first);
        exp_avg_sq[i] = kept_state(second);
        float kept = m.decoupled ? m.keep * param[i] : param[i];
        param[i] = kept - m.step_size * (first / (sqrtf(second) / m.correction2_sqrt + m.eps));
    }
}

typedef struct adadelta_math {
    float lr, rho, eps, weight_decay;
} adadelta_math;

static inline adadelta_math adadelta_math_of(const adadelta_options *o, const step_state *state)
{
    return (adadelta_math){state->plan.lr, o->rho, o->eps, o->weight_decay};
}

static inline void adadelta(float *restrict param, const float *restrict grad,
                            float *restrict square_avg, float *restrict acc_delta, size_t count,
                            const adadelta_math m)
{
    for (size_t i = 0; i < count; i++) {
        float g = grad[i] + m.weight_decay * param[i];
        float square = m.rho * square_avg[i] + (1.0f - m.rho) * g * g;
        /* torch takes two roots and divides them: one root of the quotient is as exact. */
        float delta = sqrtf((acc_delta[i] + m.eps) / (square + m.eps)) * g;
        square_avg[i] = kept_state(square);
        acc_delta[i] = kept_state(m.rho * acc_delta[i] + (1.0f - m.rho) * delta * delta);
        param[i] -= m.lr * delta;
    }
}

#endif
