/* One process, the whole batch. */
#include "app/modes/step.h"
#include "app/train/train.h"

static status open_nothing(job *j)
{
    float *flag = j->gradients + network_count(j->net);
    return preempt_open(j->dev, flag, flag, &j->stop);
}

static status gradients(training *t, const step_batch *b)
{
    TRY(step_enter(t, RANK_FORWARD, PHASE_FORWARD));
    TRY(network_forward(t->j.net, &b->in, NETWORK_TRAIN));
    TRY(step_enter(t, RANK_BACKWARD, PHASE_BACKWARD));
    return network_backward(t->j.net, !b->first, NULL, NULL);
}

static status update(training *t)
{
    TRY(step_enter(t, RANK_OPTIMIZER, PHASE_OPTIMIZER));
    return optimizer_step(t->j.opt, t->j.numbers);
}

const step_ops step_single = {
    .name = "single", .open = open_nothing, .gradients = gradients, .update = update};
