/* Optimizers over the flat arenas, with PyTorch's formulas and defaults. */
#ifndef MNIST_DDP_MODEL_OPTIMIZER_H
#define MNIST_DDP_MODEL_OPTIMIZER_H

#include "base/status.h"
#include "kernels/device.h"
#include "kernels/step.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct optimizer optimizer;

typedef enum optimizer_kind {
    OPTIMIZER_SGD,
    OPTIMIZER_ADAM,
    OPTIMIZER_ADAMW,
    OPTIMIZER_ADADELTA,
} optimizer_kind;

typedef struct optimizer_options {
    optimizer_kind kind;
    float momentum, weight_decay; /* momentum: sgd only */
    bool nesterov;                /* sgd only; needs momentum > 0 */
    float beta1, beta2;           /* adam and adamw; beta2 0: 0.9 and 0.999, as PyTorch */
} optimizer_options;

enum { OPTIMIZER_MAX_STATES = 3 }; /* with another one that it names (optimizer_part) */

status optimizer_kind_parse(const char *name, optimizer_kind *out);
const char *optimizer_kind_name(optimizer_kind kind);

/* PyTorch's: sgd, adam and adamw 1e-3, adadelta 1.0. */
float optimizer_default_lr(optimizer_kind kind);

/* PyTorch's: adamw 0.01, all others 0. */
double optimizer_default_weight_decay(optimizer_kind kind);

/* adam and adamw: they have betas. */
bool optimizer_kind_is_adam(optimizer_kind kind);

/* What an optimizer steps: `count` floats of device memory each, borrowed until it is destroyed.
 * One of several ranks may have a part of a network, or nothing: then it counts steps and has no
 * state. */
typedef struct optimizer_part {
    float *parameters;
    const float *gradients;
    size_t count;
    const char *more_name; /* a state that somebody else steps, and that is kept with these ones; */
    float *more;           /* NULL: there is none */
} optimizer_part;

status optimizer_create(device *dev, const optimizer_options *options, const optimizer_part *part,
                        optimizer **out);
void optimizer_destroy(optimizer *opt);

/* Begins the next step: counts it, and fills in the optimizer's part of its plan. */
void optimizer_plan_step(optimizer *opt, float lr, step_plan *plan);

/* The step itself: new parameters and state from the gradients and `state`, device memory, for
 * which the device began the step. */
status optimizer_step(optimizer *opt, step_state *state);

/* The state arenas by PyTorch's names ("momentum_buffer", "exp_avg", ...), optimizer_count floats
 * each, and the number of steps taken: what a checkpoint holds. Returns how many arenas there are.
 */
size_t optimizer_states(optimizer *opt, const char *names[OPTIMIZER_MAX_STATES],
                        float *arenas[OPTIMIZER_MAX_STATES]);
size_t optimizer_count(const optimizer *opt);
int64_t optimizer_steps(const optimizer *opt);
void optimizer_set_steps(optimizer *opt, int64_t steps);

#endif
