/* A parameter server: gradients to rank 0, which alone has the optimizer's state, and parameters
 * back.
 *
 * What all ranks must know travels after the parameters: whether to stop, and whether this step's
 * gradients overflowed, which only the server has seen.
 */
#include "app/train/strategy_ops.h"
#include "dist/process_group/process_group.h"
#include "kernels/ops.h"

enum { STOP, OVERFLOW, N_FLAGS }; /* after the parameters */

static bool is_server(const rank_context *rank)
{
    return rank->place.rank == 0;
}

/* Parameters travel, and both flags after them. */
static void share_network(const rank_context *rank, network_share *out)
{
    out->parameters = model_kind_count(rank->settings.model) + N_FLAGS;
}

/* The server's gradients become the mean over all ranks; the others' are spent: in place on all
 * ranks, as a backend may scale there on the way in. */
static status synchronize(rank_context *rank, void *self)
{
    (void)self;
    TRY(timeline_enter(&rank->timeline, MOMENT_REDUCE));
    const collective c = {.kind = COLLECTIVE_REDUCE,
                          .in = rank->gradients,
                          .out = rank->gradients,
                          .count = network_count(rank->net) + PREEMPT_FLOATS,
                          .prescale = 1.0f / (float)rank->place.world_size,
                          .label = "gradients to rank 0"};
    return process_group_run(rank->group, &c, rank->dev->stream);
}

/* The server's part of the optimizer's step: parameters and flags. */
static status serve(rank_context *rank)
{
    device *dev = rank->dev;
    size_t count = network_count(rank->net);
    float *flags = rank->parameters + count;
    const uint32_t *overflow = &rank->step_state->scaling.overflow;
    _Static_assert(sizeof *overflow == sizeof *flags, "its bits travel as a float's");
    TRY(strategy_ranks_optimizer_step(rank));
    TRY(dev->ops->copy(dev, &flags[STOP], rank->gradients + count, sizeof *flags));
    return dev->ops->copy(dev, &flags[OVERFLOW], overflow, sizeof *flags);
}

static status optimizer_step_at_server(rank_context *rank, void *self)
{
    device *dev = rank->dev;
    size_t count = network_count(rank->net);
    const float *flags = rank->parameters + count;
    const collective c = {.kind = COLLECTIVE_BROADCAST,
                          .in = rank->parameters,
                          .out = rank->parameters,
                          .count = count + N_FLAGS,
                          .label = "parameters from rank 0"};
    (void)self;
    if (is_server(rank))
        TRY(serve(rank));
    TRY(timeline_enter(&rank->timeline, MOMENT_BROADCAST));
    TRY(process_group_run(rank->group, &c, dev->stream));
    return is_server(rank) ? STATUS_OK
                           : dev->ops->copy(dev, &rank->step_state->scaling.overflow,
                                            &flags[OVERFLOW], sizeof *flags);
}

const strategy_ops strategy_ps = {
    .facts = {.name = "ps",
              .title = "mode ps, ranks",
              .unit = "rank",
              .alone = "a parameter server needs ranks to serve",
              .is_central = true,
              .can_be_captured = true,
              .advice = "take it if one rank must own weights and optimizer: its link carries what "
                        "all others send and get"},
    .network = share_network,
    .part = strategy_server_part,
    .share_state = strategy_ranks_share_parameters,
    .synchronize = synchronize,
    .optimizer_step = optimizer_step_at_server,
};
