/* A parameter server: gradients to rank 0, which alone has the optimizer's state, and parameters
 * back.
 *
 * What all ranks must know travels behind the parameters: whether to stop, and whether this step's
 * gradients overflowed, which only the server has seen.
 */
#include "app/modes/step.h"
#include "app/train/train.h"
#include "kernels/ops.h"

static status open_server(job *j)
{
    size_t count = network_count(j->net);
    param_server_arrays arrays = {.gradients = j->gradients,
                                  .parameters = j->parameters,
                                  .n_gradients = count + PREEMPT_FLOATS,
                                  .n_parameters = count + JOB_PS_FLOATS,
                                  .stream = j->dev->stream};
    TRY(param_server_create(j->group, &arrays, &j->server));
    return preempt_open(j->dev, j->gradients + count, j->parameters + count, &j->stop);
}

static status gradients(training *t, const step_batch *b)
{
    job *j = &t->j;
    TRY(timeline_enter(&t->j.timeline, MOMENT_FORWARD));
    TRY(network_forward(j->net, &b->in, NETWORK_TRAIN));
    TRY(timeline_enter(&t->j.timeline, MOMENT_BACKWARD));
    return network_backward(j->net, !b->first, NULL, NULL);
}

/* To or from the two floats behind the parameters. */
static status copy_news(job *j, bool to_parameters)
{
    size_t count = network_count(j->net);
    float *stop = j->parameters + count, *overflow = stop + 1;
    uint32_t *seen = &j->numbers->scaling.overflow;
    _Static_assert(sizeof *seen == sizeof *overflow, "its bits travel as a float's");
    if (!to_parameters)
        return j->dev->ops->copy(j->dev, seen, overflow, sizeof *seen);
    TRY(j->dev->ops->copy(j->dev, stop, j->gradients + count, sizeof *stop));
    return j->dev->ops->copy(j->dev, overflow, seen, sizeof *seen);
}

static status update(training *t)
{
    job *j = &t->j;
    bool serves = param_server_is_here(j->server);
    TRY(timeline_enter(&t->j.timeline, MOMENT_REDUCE));
    TRY(param_server_collect(j->server));
    if (serves) {
        TRY(timeline_enter(&t->j.timeline, MOMENT_OPTIMIZER));
        TRY(optimizer_step(j->opt, j->numbers));
        TRY(copy_news(j, true));
    }
    TRY(timeline_enter(&t->j.timeline, MOMENT_BROADCAST));
    TRY(param_server_publish(j->server));
    return serves ? STATUS_OK : copy_news(j, false);
}

const step_ops step_ps = {
    .name = "ps", .open = open_server, .gradients = gradients, .update = update};
