/* A parameter server: gradients to rank 0, which alone has the optimizer's state, and parameters
 * back.
 *
 * What all ranks must know travels after the parameters: whether to stop, and whether this step's
 * gradients overflowed, which only the server has seen.
 */
#include "app/train/strategy_ops.h"
#include "dist/param_server.h"
#include "kernels/ops.h"

enum { STOP, OVERFLOW, N_FLAGS }; /* after the parameters */

static status check(const options *opts, int world_size)
{
    if (world_size < 2)
        return FAIL(STATUS_INVALID, "--mode=ps: a parameter server needs ranks to serve: give "
                                    "--nproc-per-node=2 or more, or --mode=single");
    return strategy_ranks_check(opts);
}

static status open_server(rank_context *rank, void **self)
{
    size_t count = network_count(rank->net);
    param_server_arrays arrays = {.gradients = rank->gradients,
                                  .parameters = rank->parameters,
                                  .n_gradients = count + PREEMPT_FLOATS,
                                  .n_parameters = count + N_FLAGS,
                                  .stream = rank->dev->stream};
    param_server *server = NULL;
    TRY(param_server_create(rank->group, &arrays, &server));
    *self = server;
    return STATUS_OK;
}

/* The server alone has the optimizer's state: the others only count its steps. */
static optimizer_part part_of_server(rank_context *rank, void *self)
{
    bool serves = param_server_is_here(self);
    return (optimizer_part){network_parameters(rank->net), network_gradients(rank->net),
                            serves ? network_count(rank->net) : 0};
}

static void close_server(void *self)
{
    param_server_destroy(self);
}

static status forward_backward(rank_context *rank, void *self, const step_batch *b)
{
    (void)self;
    return strategy_ranks_forward_backward(rank, b, NULL, NULL);
}

static status synchronize(rank_context *rank, void *self)
{
    TRY(timeline_enter(&rank->timeline, MOMENT_REDUCE));
    return param_server_collect(self);
}

/* The server's part of the optimizer's step: parameters and flags. */
static status serve(rank_context *rank)
{
    device *dev = rank->dev;
    size_t count = network_count(rank->net);
    float *flags = rank->parameters + count;
    const uint32_t *overflow = &rank->state->scaling.overflow;
    _Static_assert(sizeof *overflow == sizeof *flags, "its bits travel as a float's");
    TRY(strategy_ranks_optimizer_step(rank, NULL));
    TRY(dev->ops->copy(dev, &flags[STOP], rank->gradients + count, sizeof *flags));
    return dev->ops->copy(dev, &flags[OVERFLOW], overflow, sizeof *flags);
}

static status optimizer_step_at_server(rank_context *rank, void *self)
{
    device *dev = rank->dev;
    bool serves = param_server_is_here(self);
    if (serves)
        TRY(serve(rank));
    TRY(timeline_enter(&rank->timeline, MOMENT_BROADCAST));
    TRY(param_server_publish(self));
    const float *flags = rank->parameters + network_count(rank->net);
    return serves ? STATUS_OK
                  : dev->ops->copy(dev, &rank->state->scaling.overflow, &flags[OVERFLOW],
                                   sizeof *flags);
}

const strategy_ops strategy_ps = {
    .facts = {.name = "ps",
              .title = "mode ps, ranks",
              .unit = "rank",
              .parameter_floats = N_FLAGS,
              .is_central = true,
              .can_be_captured = true},
    .check = check,
    .open = open_server,
    .close = close_server,
    .part = part_of_server,
    .scatter_state = strategy_ranks_scatter_parameters,
    .forward_backward = forward_backward,
    .synchronize = synchronize,
    .optimizer_step = optimizer_step_at_server,
    .backend = strategy_ranks_backend,
    .use = strategy_ranks_use,
};
