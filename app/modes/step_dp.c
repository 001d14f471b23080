/* DataParallel: the master, this thread, drives the replicas of app/modes/replicas.h. */
#include "app/modes/replicas.h"
#include "app/modes/step.h"
#include "app/train/train.h"

static status open_replicas(job *j)
{
    float *flag = j->gradients + network_count(j->net);
    TRY(preempt_open(j->dev, flag, flag, &j->stop));
    return replicas_create(j, &j->others);
}

static status begin(training *t, const step_plan *plan)
{
    replicas_begin_step(t->j.others, plan);
    return STATUS_OK;
}

static status gradients(training *t, const step_batch *b)
{
    return replicas_gradients(t->j.others, t, b);
}

static status update(training *t)
{
    TRY(timeline_enter(&t->j.timeline, MOMENT_OPTIMIZER));
    return optimizer_step(t->j.opt, t->j.numbers);
}

const step_ops step_dp = {
    .name = "dp", .open = open_replicas, .begin = begin, .gradients = gradients, .update = update};
