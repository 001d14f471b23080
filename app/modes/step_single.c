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
    TRY(timeline_enter(&t->j.timeline, MOMENT_FORWARD));
    TRY(network_forward(t->j.net, &b->in, NETWORK_TRAIN));
    TRY(timeline_enter(&t->j.timeline, MOMENT_BACKWARD));
    return network_backward(t->j.net, !b->first, NULL, NULL);
}

static status update(training *t)
{
    TRY(timeline_enter(&t->j.timeline, MOMENT_OPTIMIZER));
    return optimizer_step(t->j.opt, t->j.numbers);
}

const step_ops step_single = {
    .name = "single", .open = open_nothing, .gradients = gradients, .update = update};
