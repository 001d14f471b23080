#include "model/optimizer.h"

#include "base/memory.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

/* PyTorch's defaults. */
#define ADAM_BETA1 0.9f
#define ADAM_BETA2 0.999f
#define ADAM_EPS 1e-8f
#define ADADELTA_RHO 0.9f
#define ADADELTA_EPS 1e-6f

typedef struct optimizer_traits {
    const char *name;
    float lr;
    double weight_decay;
    size_t n_states;
    const char *states[OPTIMIZER_MAX_STATES];
} optimizer_traits;

static const optimizer_traits traits_of[] = {
    [OPTIMIZER_SGD] = {"sgd", 1e-3f, 0.0, 1, {"momentum_buffer"}},
    [OPTIMIZER_ADAM] = {"adam", 1e-3f, 0.0, 2, {"exp_avg", "exp_avg_sq"}},
    [OPTIMIZER_ADAMW] = {"adamw", 1e-3f, 0.01, 2, {"exp_avg", "exp_avg_sq"}},
    [OPTIMIZER_ADADELTA] = {"adadelta", 1.0f, 0.0, 2, {"square_avg", "acc_delta"}},
};

enum { N_KINDS = sizeof traits_of / sizeof traits_of[0] };

struct optimizer {
    device *dev;
    optimizer_options options;
    optimizer_part part;
    size_t n_states; /* 0: sgd without momentum, or nothing is stepped here */
    float *states[OPTIMIZER_MAX_STATES];
    int64_t steps;
};

status optimizer_kind_parse(const char *name, optimizer_kind *out)
{
    for (int i = 0; i < N_KINDS; i++)
        if (strcmp(name, traits_of[i].name) == 0) {
            *out = (optimizer_kind)i;
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID, "no optimizer '%s'; there are: sgd, adam, adamw, adadelta", name);
}

const char *optimizer_kind_name(optimizer_kind kind)
{
    return traits_of[kind].name;
}

float optimizer_default_lr(optimizer_kind kind)
{
    return traits_of[kind].lr;
}

double optimizer_default_weight_decay(optimizer_kind kind)
{
    return traits_of[kind].weight_decay;
}

bool optimizer_kind_is_adam(optimizer_kind kind)
{
    return kind == OPTIMIZER_ADAM || kind == OPTIMIZER_ADAMW;
}

status optimizer_create(device *dev, const optimizer_options *options, const optimizer_part *part,
                        optimizer **out)
{
    if (options->nesterov && options->momentum <= 0.0f)
        return FAIL(STATUS_INVALID, "nesterov needs a momentum above 0");
    optimizer *opt = NULL;
    TRY(memory_alloc(sizeof *opt, (void **)&opt));
    opt->dev = dev;
    opt->options = *options;
    if (!(options->beta2 > 0.0f)) {
        opt->options.beta1 = ADAM_BETA1;
        opt->options.beta2 = ADAM_BETA2;
    }
    opt->part = *part;
    bool plain_sgd = options->kind == OPTIMIZER_SGD && options->momentum <= 0.0f;
    opt->n_states = plain_sgd || part->count == 0 ? 0 : traits_of[options->kind].n_states;
    for (size_t i = 0; i < opt->n_states; i++) {
        status st = dev->ops->alloc(dev, sizeof(float) * part->count, (void **)&opt->states[i]);
        if (st != STATUS_OK) {
            optimizer_destroy(opt);
            return st;
        }
    }
    *out = opt;
    return STATUS_OK;
}

void optimizer_destroy(optimizer *opt)
{
    if (opt == NULL)
        return;
    for (size_t i = 0; i < opt->n_states; i++)
        opt->dev->ops->free(opt->dev, opt->states[i]);
    free(opt);
}

void optimizer_plan_step(optimizer *opt, float lr, step_plan *plan)
{
    bool is_adam = optimizer_kind_is_adam(opt->options.kind);
    plan->lr = lr;
    plan->beta1 = is_adam ? opt->options.beta1 : 0.0f;
    plan->beta2 = is_adam ? opt->options.beta2 : 0.0f;
    plan->step = ++opt->steps;
}

status optimizer_step(optimizer *opt, step_state *state)
{
    const device_ops *ops = opt->dev->ops;
    const optimizer_options *o = &opt->options;
    optimizer_slice slice = {opt->part.parameters, opt->part.gradients, opt->states[0],
                             opt->states[1], opt->part.count};
    switch (o->kind) {
    case OPTIMIZER_SGD: {
        sgd_options sgd = {o->momentum, o->weight_decay, o->nesterov};
        return ops->sgd_step(opt->dev, &slice, state, &sgd);
    }
    case OPTIMIZER_ADAM:
    case OPTIMIZER_ADAMW: {
        adam_options adam = {o->beta1, o->beta2, ADAM_EPS, o->weight_decay,
                             o->kind == OPTIMIZER_ADAMW};
        return ops->adam_step(opt->dev, &slice, state, &adam);
    }
    case OPTIMIZER_ADADELTA:
        break;
    }
    adadelta_options adadelta = {ADADELTA_RHO, ADADELTA_EPS, o->weight_decay};
    return ops->adadelta_step(opt->dev, &slice, state, &adadelta);
}

size_t optimizer_states(optimizer *opt, const char *names[OPTIMIZER_MAX_STATES],
                        float *arenas[OPTIMIZER_MAX_STATES])
{
    for (size_t i = 0; i < opt->n_states; i++) {
        names[i] = traits_of[opt->options.kind].states[i];
        arenas[i] = opt->states[i];
    }
    if (opt->part.more == NULL)
        return opt->n_states;
    names[opt->n_states] = opt->part.more_name;
    arenas[opt->n_states] = opt->part.more;
    return opt->n_states + 1;
}

size_t optimizer_count(const optimizer *opt)
{
    return opt->part.count;
}

int64_t optimizer_steps(const optimizer *opt)
{
    return opt->steps;
}

void optimizer_set_steps(optimizer *opt, int64_t steps)
{
    opt->steps = steps;
}
