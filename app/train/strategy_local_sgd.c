/* --mode=ddp with --sync-every: each rank makes so many optimizer steps with its own gradients, and
 * then all ranks go on from the mean of their parameters (local SGD: McMahan et al., 2017; Stich,
 * 2019). With --outer-lr and --outer-momentum it is DiLoCo (Douillard et al., 2023): what the ranks
 * have moved away from the parameters of the last time, on average, is the gradient of an outer
 * SGD with Nesterov momentum, which steps those.
 *
 * The optimizer's state becomes the mean, too. So all ranks have the same state, in every bit,
 * whenever they have met: a checkpoint needs rank 0's alone, and any number of ranks goes on from
 * it. A rank's wish to stop travels with the parameters.
 */
#include "app/train/strategy_ops.h"
#include "base/memory.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

enum { OUTER, DIFFERENCE, N_STEPPED };

typedef struct local_sgd {
    device *dev;
    float *met;  /* (network_count): the parameters when all ranks last met; NULL: no outer step */
    bool is_met; /* false: they are those before the first step, which are not copied yet */
    optimizer *opt[N_STEPPED];
    step_state *state[N_STEPPED]; /* device memory: of their learning rates */
} local_sgd;

static status check(const options *opts, int n)
{
    (void)n;
    if (opts->comm_hook != NULL && strcmp(opts->comm_hook, "none") != 0)
        return FAIL(STATUS_INVALID,
                    "--comm-hook=%s is for gradients, and with --sync-every=%lld "
                    "ranks send parameters: leave one of them out",
                    opts->comm_hook, (long long)opts->sync_every);
    if (strcmp(opts->amp, "fp16") == 0)
        return FAIL(STATUS_INVALID,
                    "--sync-every=%lld: with --amp=fp16 each rank would scale its "
                    "own loss: give --amp=bf16, or --sync-every=1",
                    (long long)opts->sync_every);
    return STATUS_OK;
}

/* Parameters travel, and the wish to stop after them. */
static void share_network(const rank_context *rank, network_share *out)
{
    out->parameters = out->gradients;
    (void)rank;
}

static status open_stepped(rank_context *rank, local_sgd *s, int i, const optimizer_options *how,
                           float lr)
{
    device *dev = rank->dev;
    const optimizer_part part = {i == OUTER ? s->met : rank->gradients,
                                 i == OUTER ? rank->gradients : network_parameters(rank->net),
                                 .count = network_count(rank->net)};
    step_plan plan = {0};
    TRY(dev->ops->alloc(dev, sizeof *s->state[i], (void **)&s->state[i]));
    TRY(optimizer_create(dev, how, &part, &s->opt[i]));
    optimizer_plan_step(s->opt[i], lr, &plan);
    return dev->ops->begin_step(dev, &plan, s->state[i], NULL);
}

/* Of an outer step: the gradients of the inner ones are spent then, and their memory is its
 * gradient's. It is a difference, which a step of SGD with a learning rate of 1 takes. */
static status open_outer(rank_context *rank, local_sgd *s)
{
    device *dev = rank->dev;
    float momentum = (float)rank->opts->outer_momentum;
    const optimizer_options outer = {
        .kind = OPTIMIZER_SGD, .momentum = momentum, .nesterov = momentum > 0};
    const optimizer_options difference = {.kind = OPTIMIZER_SGD};
    TRY(dev->ops->alloc(dev, sizeof *s->met * network_count(rank->net), (void **)&s->met));
    TRY(open_stepped(rank, s, OUTER, &outer, (float)rank->opts->outer_lr));
    return open_stepped(rank, s, DIFFERENCE, &difference, 1.0f);
}

static void close_outer(void *self)
{
    local_sgd *s = self;
    for (int i = 0; i < N_STEPPED; i++) {
        optimizer_destroy(s->opt[i]);
        s->dev->ops->free(s->dev, s->state[i]);
    }
    s->dev->ops->free(s->dev, s->met);
}

static status open_local(rank_context *rank, void *self)
{
    local_sgd *s = self;
    s->dev = rank->dev;
    bool is_mean = rank->opts->outer_lr == 1.0 && rank->opts->outer_momentum == 0.0;
    return is_mean ? STATUS_OK : open_outer(rank, s);
}

/* Checkpoints have the outer momentum, too. */
static void add_momentum(const rank_context *rank, void *self, optimizer_part *out)
{
    const char *names[OPTIMIZER_MAX_STATES];
    float *states[OPTIMIZER_MAX_STATES];
    if (rank->opts->outer_momentum > 0) {
        (void)optimizer_states(((const local_sgd *)self)->opt[OUTER], names, states);
        out->more_name = "outer_momentum_buffer";
        out->more = states[0];
    }
}

static status copy_parameters(const rank_context *rank, float *to, const float *from)
{
    return rank->dev->ops->copy(rank->dev, to, from, sizeof *to * network_count(rank->net));
}

static status forward_backward(rank_context *rank, void *self, const step_batch *b)
{
    local_sgd *s = self;
    if (s->met != NULL && !s->is_met)
        TRY(copy_parameters(rank, s->met, rank->parameters));
    s->is_met = true;
    return strategy_ranks_forward_backward(rank, b, NULL, NULL);
}

/* The outer momentum, which stands after them, is alike on all ranks already. */
static size_t inner_states(const rank_context *rank, float *states[OPTIMIZER_MAX_STATES])
{
    const char *names[OPTIMIZER_MAX_STATES];
    size_t n = optimizer_states(strategy_optimizer(rank->strategy), names, states);
    return rank->opts->outer_momentum > 0 ? n - 1 : n;
}

static status step_outer(rank_context *rank, local_sgd *s)
{
    TRY(timeline_enter(&rank->timeline, MOMENT_OPTIMIZER));
    TRY(copy_parameters(rank, rank->gradients, s->met));
    TRY(optimizer_step(s->opt[DIFFERENCE], s->state[DIFFERENCE]));
    TRY(optimizer_step(s->opt[OUTER], s->state[OUTER]));
    return copy_parameters(rank, rank->parameters, s->met);
}

static status meet(rank_context *rank, void *self)
{
    local_sgd *s = self;
    device *dev = rank->dev;
    float *states[OPTIMIZER_MAX_STATES];
    size_t count = network_count(rank->net), n = inner_states(rank, states);
    TRY(timeline_enter(&rank->timeline, MOMENT_REDUCE));
    TRY(dev->ops->copy(dev, rank->parameters + count, rank->gradients + count,
                       PREEMPT_FLOATS * sizeof(float)));
    TRY(strategy_ranks_average(rank, rank->parameters, count + PREEMPT_FLOATS, "parameters"));
    for (size_t i = 0; i < n; i++)
        TRY(strategy_ranks_average(rank, states[i], count, "optimizer state"));
    if (s->met != NULL)
        TRY(step_outer(rank, s));
    return timeline_enter(&rank->timeline, MOMENT_BETWEEN);
}

static void describe(const rank_context *rank, void *self, FILE *out)
{
    float *states[OPTIMIZER_MAX_STATES];
    const options *o = rank->opts;
    size_t count = network_count(rank->net), n = 1 + inner_states(rank, states);
    const collective all = {.kind = COLLECTIVE_ALL_REDUCE, .type = DTYPE_F32, .count = count};
    rank_traffic moves = process_group_expect_traffic(rank->group, &all);
    fprintf(out, "each rank steps by its own gradients; ranks meet after %lld steps, at\n",
            (long long)o->sync_every);
    fputs("the end of an epoch, and before a test or a checkpoint:\n", out);
    fprintf(out, "parameters and optimizer state, %.2f MB, become their mean\n",
            (double)(count * n * sizeof(float)) * 1e-6);
    fprintf(out, "rank 0 sends %.2f MB each time, and gets %.2f MB\n",
            (double)moves.sent * (double)n * 1e-6, (double)moves.received * (double)n * 1e-6);
    if (((const local_sgd *)self)->met != NULL)
        fprintf(out, "an outer step follows: lr %g, Nesterov momentum %g\n", o->outer_lr,
                o->outer_momentum);
}

const strategy_ops strategy_local_sgd = {
    .facts = {.name = "ddp", .title = "local SGD, ranks", .unit = "rank", .can_be_captured = true},
    .check = check,
    .self_bytes = sizeof(local_sgd),
    .open = open_local,
    .close = close_outer,
    .network = share_network,
    .part = add_momentum,
    .forward_backward = forward_backward,
    .meet = meet,
    .describe = describe,
};
