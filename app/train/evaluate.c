#include "app/train/evaluate.h"

#include "base/clock.h"
#include "kernels/ops.h"

status evaluate_open(job *j)
{
    uint64_t rank = (uint64_t)j->place.rank, world = (uint64_t)j->place.world_size;
    uint32_t count = j->test_set.count;
    uint32_t first = (uint32_t)(count * rank / world), end = (uint32_t)(count * (rank + 1) / world);
    int64_t batch_size = network_max_batch(j->net);
    if (j->opts->test_batch_size < batch_size)
        batch_size = j->opts->test_batch_size;
    if (first == end)
        return STATUS_OK; /* more ranks than images */
    dataset part = {.count = end - first,
                    .images = j->test_set.images + (size_t)first * DATASET_PIXELS,
                    .labels = j->test_set.labels + first};
    loader_options settings = {.batch_size = (int)batch_size,
                               .accum = 1,
                               .sampler = {.samples = part.count, .world_size = 1},
                               .numbers = j->numbers};
    TRY(loader_create(j->dev, &part, &settings, &j->test_load));
    return loader_start_epoch(j->test_load, 0);
}

/* This rank's part, into the network's totals. */
static status evaluate_part(job *j)
{
    int steps = j->test_load != NULL ? loader_steps(j->test_load) : 0;
    for (int step = 0; step < steps; step++) {
        step_plan plan = {0};
        batch in;
        loader_begin_step(j->test_load, step, &plan);
        TRY(j->dev->ops->begin_step(j->dev, &plan, j->numbers, NULL));
        TRY(loader_next(j->test_load, &in));
        TRY(network_forward(j->net, &in, NETWORK_EVAL));
        TRY(network_score(j->net));
    }
    return STATUS_OK;
}

status evaluate(job *j, evaluation *out)
{
    int64_t started = clock_now_ns();
    score total;
    TRY(network_reset_score(j->net));
    trace_pause(j->trace.spans, true); /* every batch's layers are not worth their room */
    TRY(evaluate_part(j));
    trace_pause(j->trace.spans, false);
    TRY(network_read_score(j->net, &total));
    if (j->group != NULL) {
        TRY(process_group_all_reduce(j->group, &total.correct, 1, DTYPE_I64, REDUCE_SUM, NULL));
        TRY(process_group_all_reduce(j->group, &total.loss_sum, 1, DTYPE_F64, REDUCE_SUM, NULL));
    }
    *out = (evaluation){.images = j->test_set.count,
                        .correct = total.correct,
                        .loss = total.loss_sum / j->test_set.count,
                        .elapsed_s = clock_seconds(clock_now_ns() - started)};
    return STATUS_OK;
}

double evaluation_accuracy(const evaluation *e)
{
    return (double)e->correct / (double)e->images;
}
