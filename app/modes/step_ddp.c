/* DistributedDataParallel: buckets of gradients are averaged over all ranks while backward goes on.
 */
#include "app/modes/step.h"
#include "app/train/train.h"

#define MIB (1024.0 * 1024.0)

enum { FIRST_BUCKET_MIB = 1, BUCKET_CAP_MIB = 25 }; /* PyTorch's */

static status open_reducer(job *j)
{
    const parameter *parameters = NULL;
    const char *names[NETWORK_MAX_PARAMETERS];
    size_t n = network_layout(j->net, &parameters), offsets[NETWORK_MAX_PARAMETERS];
    for (size_t i = 0; i < n; i++) {
        offsets[i] = parameters[i].offset;
        names[i] = parameters[i].name;
    }
    double cap = j->opts->bucket_cap_mb;
    ddp_options settings = {.first_bucket_bytes =
                                (size_t)((cap < 0 ? FIRST_BUCKET_MIB : cap) * MIB),
                            .bucket_cap_bytes = (size_t)((cap < 0 ? BUCKET_CAP_MIB : cap) * MIB),
                            .overlap = j->opts->overlap};
    size_t count = network_count(j->net);
    TRY(ddp_create(j->group, j->gradients, &(ddp_parameters){count, offsets, n}, &settings,
                   &j->reducer));
    TRY(ddp_name_parameters(j->reducer, names));
    ddp_carry(j->reducer, PREEMPT_FLOATS);
    return preempt_open(j->dev, j->gradients + count, j->gradients + count, &j->stop);
}

static status gradients(training *t, const step_batch *b)
{
    job *j = &t->j;
    TRY(timeline_enter(&t->j.timeline, MOMENT_FORWARD));
    TRY(network_forward(j->net, &b->in, NETWORK_TRAIN));
    TRY(timeline_enter(&t->j.timeline, MOMENT_BACKWARD));
    return network_backward(j->net, !b->first, b->last ? ddp_on_grad_ready : NULL, j->reducer);
}

static status update(training *t)
{
    TRY(timeline_enter(&t->j.timeline, MOMENT_DDP_WAIT));
    TRY(ddp_wait(t->j.reducer)); /* gradients are now the mean over all ranks */
    TRY(timeline_enter(&t->j.timeline, MOMENT_OPTIMIZER));
    return optimizer_step(t->j.opt, t->j.numbers);
}

const step_ops step_ddp = {
    .name = "ddp", .open = open_reducer, .gradients = gradients, .update = update};
