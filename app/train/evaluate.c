#include "app/train/evaluate.h"

#include "base/clock.h"
#include "kernels/ops.h"

#include <math.h>

static void count_tested(rank_context *rank, const dataset *set, int images)
{
    unsigned tested = atomic_load_explicit(&rank->tested, memory_order_relaxed);
    tested += (unsigned)images * (unsigned)rank->place.world_size;
    tested = tested < set->count ? tested : set->count;
    atomic_store_explicit(&rank->tested, tested, memory_order_relaxed);
}

/* Waits for the device. */
static status read_logits(const rank_context *rank, int n, float *out)
{
    return rank->dev->ops->download(rank->dev, out, network_logits(rank->net),
                                    sizeof *out * NETWORK_CLASSES * (size_t)n);
}

/* This rank's part, into the network's totals and its logits. */
static status evaluate_part(rank_context *rank, const dataset *set, float *logits)
{
    loader *part = set == &rank->val_set ? rank->val_loader : rank->test_loader;
    size_t done = rank_context_first_tested(rank, set, rank->place.rank);
    int steps = part != NULL ? loader_steps(part) : 0;
    for (int step = 0; step < steps; step++) {
        step_plan plan = {0};
        batch in;
        loader_begin_step(part, step, &plan);
        TRY(rank->dev->ops->begin_step(rank->dev, &plan, rank->state, NULL));
        TRY(loader_next(part, &in));
        TRY(network_forward(rank->net, &in, NETWORK_EVAL));
        TRY(network_score(rank->net));
        if (logits != NULL)
            TRY(read_logits(rank, in.n, logits + done * NETWORK_CLASSES));
        done += (size_t)in.n;
        count_tested(rank, set, in.n);
    }
    return STATUS_OK;
}

status evaluate(rank_context *rank, const dataset *set, float *logits, evaluation *out)
{
    int64_t started = clock_now_ns();
    score total;
    TRY(network_reset_score(rank->net));
    atomic_store_explicit(&rank->tested, 0, memory_order_relaxed);
    atomic_store_explicit(&rank->evaluated, set, memory_order_relaxed);
    trace_pause(rank->trace.spans, true); /* a trace has no room for the layers of every batch */
    TRY(evaluate_part(rank, set, logits));
    trace_pause(rank->trace.spans, false);
    TRY(network_read_score(rank->net, &total));
    TRY(process_group_all_reduce(rank->group, &total.correct, 1, DTYPE_I64, REDUCE_SUM, NULL));
    TRY(process_group_all_reduce(rank->group, &total.loss_sum, 1, DTYPE_F64, REDUCE_SUM, NULL));
    *out = (evaluation){.name = set == &rank->val_set ? "validation" : "test",
                        .images = set->count,
                        .correct = total.correct,
                        .loss = isnan(total.loss_sum) ? (double)NAN /* without a sign */
                                                      : total.loss_sum / set->count,
                        .elapsed_s = clock_seconds(clock_now_ns() - started)};
    return STATUS_OK;
}

/* Each image's logits are one rank's; on all others they are zero. */
status evaluate_gather(rank_context *rank, float *logits)
{
    size_t count = (size_t)rank->test_set.count * NETWORK_CLASSES;
    return process_group_all_reduce(rank->group, logits, count, DTYPE_F32, REDUCE_SUM, NULL);
}

double evaluation_accuracy(const evaluation *e)
{
    return (double)e->correct / (double)e->images;
}
