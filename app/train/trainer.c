/* The training loop: a step is the strategy's (strategy.c), its epochs are trainer_run. The rest is
 * what happens around a step and between two epochs. */
#include "app/train/trainer.h"

#include "app/train/agent_link.h"
#include "app/train/rank_context.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/ops.h"

#include <math.h>
#include <stdlib.h>

enum { MEETINGS = 8 }; /* waits of a batch for other ranks, at most: fsdp's, for each layer */

/* With fp16 a loss that is not finite is an overflow of the loss scaling, whose step is skipped. */
static bool watches_loss(const rank_context *rank)
{
    return rank->dev->precision != PRECISION_F16;
}

/* What differs from step to step goes to the device: lr, the first sample, the wish to stop. */
static status begin_step(trainer *t, int step)
{
    rank_context *rank = t->rank;
    device *dev = rank->dev;
    step_plan plan = {.scale_loss = dev->precision == PRECISION_F16,
                      .stop = preempt_wish(&rank->stop, rank_signals_asked(t->signals) != 0,
                                           agent_link_wants_pause(rank->link)),
                      .loss_sum = watches_loss(rank) ? &network_totals(rank->net)->loss_sum : NULL};
    loader_plan_step(rank->loader, step, &plan);
    strategy_plan_step(rank->strategy, (float)t->lr, &plan);
    return dev->ops->begin_step(dev, &plan, rank->step_state, rank->stop.flag);
}

/* Ends the round if it is over, strikes for --inject, and tells whoever follows the run. */
static status before_step(trainer *t, int step)
{
    rank_context *rank = t->rank;
    TRY(agent_link_check(rank->link));
    TRY(timeline_begin_step(&rank->timeline, t->at.epoch, t->at.step + 1));
    fault_before_step(&t->fault, t->at.step + 1);
    run_records_step_begins(&t->records, &t->at, step);
    return STATUS_OK;
}

static status after_step(trainer *t)
{
    timeline_end_step(&t->rank->timeline);
    core_binding_look(&t->rank->binding);
    return run_records_step_ends(&t->records);
}

/* Whether all ranks are to have the same state after the step that the run has just made. */
static bool ranks_meet(const trainer *t, int step, int steps)
{
    const rank_context *rank = t->rank;
    return step + 1 == steps || (step + 1) % rank->opts->sync_every == 0 ||
           interval_is_due_after_steps(&rank->settings.eval_every, t->at.step) ||
           interval_is_due_after_steps(&t->save_every, t->at.step);
}

static status run_step(trainer *t, int step, int steps)
{
    rank_context *rank = t->rank;
    int samples = loader_step_samples(rank->loader, step);
    TRY(before_step(t, step));
    TRY(begin_step(t, step));
    /* strategy.c: train_step, or the mode's own run_step; or a replay of it */
    TRY(step_graphs_run(&t->graphs, samples, step, strategy_run_step, rank->strategy));
    t->own_samples += (uint32_t)samples;
    t->at.step++;
    t->at.step_in_epoch++;
    if (ranks_meet(t, step, steps))
        TRY(strategy_meet(rank->strategy));
    return after_step(t);
}

/* All ranks find the same after the same step: the run ends there, and saves nothing more. */
static void note_diverged(trainer *t, const char *what)
{
    t->not_finite = what;
    t->diverged_step = t->at.step;
    preempt_note_diverged(&t->rank->stop);
}

/* Loss and images of the epoch as last read, over all ranks and with what a resumed epoch began
 * with. */
static status total_epoch(trainer *t)
{
    bool scores = t->rank->sharing.scores;
    double totals[] = {scores ? t->loss_before + t->so_far.loss_sum : 0,
                       scores ? (double)t->own_samples : 0};
    TRY(process_group_all_reduce(t->rank->group, totals, 2, DTYPE_F64, REDUCE_SUM, NULL));
    TRY(strategy_commit_confirm(t->rank->strategy, t->at.step - t->began.step));
    t->at.epoch_loss = t->began.epoch_loss + totals[0];
    t->at.epoch_samples = t->began.epoch_samples + (int64_t)totals[1];
    if (watches_loss(t->rank) && !isfinite(totals[0]))
        note_diverged(t, "the training loss");
    return STATUS_OK;
}

/* A step may have left weights that are not finite though its own loss was: no checkpoint holds
 * them. All ranks have the same weights, or ask each other. */
static status check_weights(trainer *t)
{
    bool finite = true;
    TRY(strategy_is_finite(t->rank->strategy, &finite));
    if (!finite)
        note_diverged(t, "a weight");
    return STATUS_OK;
}

/* What was tested at this step; NULL: nothing was. */
static const checkpoint_test *test_at(const trainer *t, int64_t step)
{
    return t->found.test.images > 0 && t->found.step == step ? &t->found.test : NULL;
}

/* Whether that is better than all tests before. The same on all ranks. Its weights are then saved,
 * and keep_best makes them the best. A run without checkpoints skips the save. */
static bool found_best(const trainer *t)
{
    const checkpoint_test *found = test_at(t, t->at.step);
    return found != NULL && best_checkpoint_is_better(found, &t->result->best.test);
}

static void keep_best(trainer *t)
{
    t->result->best = t->found;
}

/* Rank 0 saves, and the others give what they have of its state. A disk that is full does not end
 * the training: it says so and goes on. What was written before stays. The run's end looks whether
 * the last is there, and exits with the disk's code if not. */
static status save_checkpoint(trainer *t, bool is_best)
{
    rank_context *rank = t->rank;
    if (rank->place.rank != 0)
        return strategy_serve_state(rank->strategy);
    run_records_checkpoint(
        &t->records, run_folder_save(t->folder, rank, &t->at, test_at(t, t->at.step), is_best));
    return strategy_end_state(rank->strategy);
}

static status save(trainer *t)
{
    rank_context *rank = t->rank;
    if (!run_folder_takes_checkpoints(rank->opts) || rank->stop.diverged)
        return STATUS_OK;
    TRY(timeline_enter(&rank->timeline, MOMENT_CHECKPOINT));
    TRY(check_weights(t));
    TRY(run_records_flush(
        &t->records)); /* or a run killed now would go on with a gap in its lines */
    if (!rank->stop.diverged) {
        bool is_best = found_best(t);
        TRY(save_checkpoint(t, is_best));
        if (is_best)
            keep_best(t);
    }
    return timeline_enter(&rank->timeline, MOMENT_BETWEEN);
}

static status publish_step(trainer *t, int step, int steps)
{
    const rank_context *rank = t->rank;
    int before_last = (loader_micro_steps(rank->loader, step) - 1) * rank->settings.batch_size;
    const step_facts f = {.number = t->at.step,
                          .epoch = t->at.epoch,
                          .step = step,
                          .steps = steps,
                          .samples = t->own_samples,
                          .batch_n = loader_step_samples(rank->loader, step) - before_last,
                          .lr = t->lr};
    return run_records_publish_step(&t->records, &f, network_totals(rank->net));
}

static void count_tested(rank_context *rank, const dataset *set, int images)
{
    unsigned tested = atomic_load_explicit(&rank->tested, memory_order_relaxed);
    tested += (unsigned)images * (unsigned)rank->sharing.world_size;
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
    size_t done = rank_context_first_tested(rank, set, rank->sharing.rank);
    int steps = part != NULL ? loader_steps(part) : 0;
    for (int step = 0; step < steps; step++) {
        step_plan plan = {0};
        batch in;
        loader_plan_step(part, step, &plan);
        TRY(rank->dev->ops->begin_step(rank->dev, &plan, rank->step_state, NULL));
        TRY(loader_next(part, &in));
        TRY(strategy_evaluate(rank->strategy, &in));
        if (logits != NULL && rank->sharing.scores)
            TRY(read_logits(rank, in.n, logits + done * NETWORK_CLASSES));
        done += (size_t)in.n;
        count_tested(rank, set, in.n);
    }
    for (int step = steps; step < rank_context_test_steps(rank, set); step++)
        TRY(strategy_evaluate(rank->strategy, NULL));
    return STATUS_OK;
}

/* Exact evaluation: every image once, at any number of ranks. `set` is rank->test_set or
 * rank->val_set. Each rank takes a contiguous part of it; counts are summed as integers. `logits`:
 * host memory for all images, (set->count, NETWORK_CLASSES), of which this rank sets those of its
 * part; NULL: nobody wants them. */
static status evaluate(rank_context *rank, const dataset *set, float *logits, evaluation *out)
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

/* While a run goes on, its tests are on its validation images if it has some (--val-split), and the
 * test images are looked at once, at its end. */
static bool validates(const rank_context *rank)
{
    return rank->val_set.count > 0;
}

static status test_on(trainer *t, const dataset *set, float *logits, evaluation *out)
{
    timeline *time = &t->rank->timeline;
    TRY(timeline_enter(time, MOMENT_EVALUATION));
    TRY(evaluate(t->rank, set, logits, out));
    TRY(strategy_commit_confirm(t->rank->strategy, t->at.step - t->began.step));
    return timeline_enter(time, MOMENT_BETWEEN);
}

static bool reaches_target(const trainer *t)
{
    double target = t->rank->opts->target_acc;
    return target >= 0 && evaluation_accuracy(t->monitored) >= (target > 1 ? target / 100 : target);
}

/* The run's last test leaves its logits. Whether the target is reached is known only afterwards, so
 * that each may be the last. */
static status test(trainer *t)
{
    rank_context *rank = t->rank;
    const evaluation *found = t->monitored;
    bool may_be_last = rank->opts->target_acc >= 0 || t->at.epoch + 1 >= t->epochs;
    if (validates(rank))
        TRY(test_on(t, &rank->val_set, NULL, t->monitored));
    else
        TRY(test_on(t, &rank->test_set, may_be_last ? t->logits : NULL, t->monitored));
    t->found =
        (test_found){{found->images, found->correct, found->loss}, t->at.step, t->at.epoch + 1};
    t->reached = reaches_target(t);
    if (!isfinite(found->loss))
        note_diverged(t, validates(rank) ? "the validation loss" : "the test loss");
    if (!run_folder_takes_checkpoints(rank->opts) && found_best(t)) /* else with its checkpoint */
        keep_best(t);
    return STATUS_OK;
}

/* Between two steps of an epoch: neither the test's time nor its loss is the epoch's. */
static status test_inside_epoch(trainer *t, int step, int steps)
{
    rank_context *rank = t->rank;
    TRY(run_records_say(&t->records));
    TRY(network_read_score(rank->net, &t->so_far)); /* waits for the device */
    t->result->last_loss = t->so_far.last_loss;
    t->loss_before += t->so_far.loss_sum;
    t->so_far = (score){0};
    TRY(timeline_stop_counting(&rank->timeline));
    int64_t began_ns = clock_now_ns();
    TRY(test(t));
    TRY(network_reset_score(rank->net));
    strategy_commit_reset_score(rank->strategy);
    t->tested_ns += clock_now_ns() - began_ns;
    run_records_test(&t->records, &(test_facts){.found = t->monitored,
                                                .number = t->at.step,
                                                .epoch = t->at.epoch,
                                                .step = step,
                                                .steps = steps});
    run_records_begin_rate(&t->records, t->own_samples);
    timeline_count_from_here(&rank->timeline);
    return timeline_begin_steps(&rank->timeline);
}

/* Whether all ranks stop. A loss is known to be not finite when the next step has ended; an
 * accelerator's answer may be of an earlier one. */
static status look_at_stop(trainer *t, preempt_when when)
{
    rank_context *rank = t->rank;
    TRY(preempt_look(&rank->stop, when));
    if (!rank->stop.diverged)
        return STATUS_OK;
    note_diverged(t, "the training loss");
    t->diverged_step--;
    return STATUS_OK;
}

/* What follows a step on the host: the next epoch's order while an accelerator is still at work on
 * this one, the log, a test if one is due inside the epoch, and a checkpoint if one is due, the
 * target is reached, or all ranks stop or pause: they may pause because all nodes are to end. */
static status follow_step(trainer *t, int step, int steps)
{
    rank_context *rank = t->rank;
    bool last = step + 1 == steps;
    /* Where the host is in each collective, it is not ahead of the device. */
    bool now = last || (rank->link != NULL && !t->graphs.enabled);
    if (last && t->at.epoch + 1 < t->epochs)
        TRY(loader_draw_epoch(rank->loader, fault_order(&t->fault, t->at.epoch + 1)));
    TRY(publish_step(t, step, steps));
    if (rank->link != NULL) { /* whoever is rank 0 next continues them */
        if (now)
            TRY(run_records_say(&t->records));
        run_records_keep(&t->records);
    }
    TRY(look_at_stop(t, now ? PREEMPT_NOW : PREEMPT_CHEAPLY));
    if (!last && !preempt_ends_round(&rank->stop) &&
        interval_is_due_after_steps(&rank->settings.eval_every, t->at.step))
        TRY(test_inside_epoch(t, step, steps));
    bool save_is_due = preempt_ends_round(&rank->stop) || t->reached ||
                       interval_is_due_after_steps(&t->save_every, t->at.step) || found_best(t);
    if (!save_is_due || rank->stop.diverged)
        return STATUS_OK;
    TRY(network_read_score(rank->net, &t->so_far));
    TRY(total_epoch(t));
    return save(t);
}

enum { FEW = 20 }; /* samples, that may come twice in the same order by chance */

/* After the loader has begun the epoch (from 0): rank 0 warns of one in the order of the epoch
 * before. Such epochs train worse and say nothing: the bug of a sampler whose set_epoch nobody
 * calls. */
static void epoch_order_look(const rank_context *rank, int64_t epoch)
{
    if (rank->place.rank == 0 && loader_repeats_order(rank->loader) && rank->opts->shuffle &&
        loader_samples(rank->loader) > FEW)
        LOG_W("epoch %lld has its images in the order of epoch %lld: the sampler was not told of "
              "the new epoch (set_epoch)",
              (long long)epoch + 1, (long long)epoch);
}

/* The learning rate of step `step` of the epoch at `at`, in this world: other worlds have had their
 * share of the epoch's steps before it. */
static double lr_of(rank_context *rank, const position *at, int64_t step)
{
    int64_t steps = loader_steps(rank->loader), before = at->epoch * steps;
    int64_t others = steps * at->epoch_first / (int64_t)rank->train_set.count;
    int64_t found = before + others + step, last = before + steps - 1;
    return schedule_lr(&rank->schedule, found < last ? found : last);
}

static status begin_steps(trainer *t)
{
    rank_context *rank = t->rank;
    int order = fault_order(&t->fault, t->at.epoch);
    timeline_count_from_here(&rank->timeline);
    if (t->at.epoch_first > 0)
        TRY(loader_leave_out(rank->loader, order, (uint32_t)t->at.epoch_first));
    TRY(loader_start_epoch(rank->loader, order));
    epoch_order_look(rank, t->at.epoch);
    TRY(network_reset_score(rank->net));
    t->own_samples = 0;
    t->loss_before = 0;
    t->tested_ns = 0;
    run_records_begin_rate(&t->records, 0);
    return timeline_begin_steps(&rank->timeline);
}

static status train_epoch(trainer *t)
{
    rank_context *rank = t->rank;
    TRY(begin_steps(t));
    int epoch_steps = loader_epoch_steps(rank->loader, fault_order(&t->fault, t->at.epoch));
    int steps = fault_steps(&t->fault, rank->opts->dry_run ? 1 : epoch_steps);
    t->epoch_steps = steps;
    if (t->at.step_in_epoch > 0) /* resumed, perhaps after the last of them */
        t->lr = lr_of(rank, &t->at, t->at.step_in_epoch - 1);
    for (int step = (int)t->at.step_in_epoch;
         step < steps && !preempt_ends_round(&rank->stop) && !t->reached; step++) {
        t->lr = lr_of(rank, &t->at, step);
        TRY(run_step(t, step, steps));
        TRY(follow_step(t, step, steps));
    }
    TRY(run_records_say(&t->records));
    TRY(network_read_score(rank->net, &t->so_far)); /* waits for the device */
    TRY(timeline_stop_counting(&rank->timeline));
    if (!t->reached) /* else the test has noted it */
        t->result->last_loss = t->so_far.last_loss;
    return STATUS_OK;
}

/* Is a test due at the end of the epoch? */
static bool test_is_due(const trainer *t)
{
    const interval *every = &t->rank->settings.eval_every;
    return every->count > 0 &&
           (t->at.epoch + 1 == t->epochs || interval_is_due_after_epochs(every, t->at.epoch + 1) ||
            interval_is_due_after_steps(every, t->at.step));
}

/* Test and report, and a checkpoint if one is due. An epoch in which the target was reached has had
 * its test and its checkpoint, and stays where it is. */
static status end_epoch(trainer *t, double train_s)
{
    rank_context *rank = t->rank;
    TRY(total_epoch(t));
    if (rank->stop.diverged)
        return STATUS_OK;
    TRY(timeline_settle_waiting(&rank->timeline, rank->group));
    bool ended_inside = t->reached, tested = !ended_inside && test_is_due(t);
    if (tested)
        TRY(test(t));
    run_records_epoch(
        &t->records,
        &(epoch_facts){.number = t->at.step,
                       .epoch = t->at.epoch,
                       .train_s = train_s,
                       .train_loss = t->at.epoch_loss / (double)t->at.epoch_samples,
                       .images = t->at.epoch_timed + t->at.epoch_samples - t->began.epoch_samples,
                       .lr = t->lr,
                       .tested = tested ? t->monitored : NULL});
    if (ended_inside || rank->stop.diverged)
        return STATUS_OK;
    t->at = (position){
        .epoch = t->at.epoch + 1, .step = t->at.step, .world_changes = t->at.world_changes};
    t->began = t->at;
    strategy_commit_begin(t->rank->strategy);
    if (t->reached || t->at.epoch == t->epochs ||
        interval_is_due_after_epochs(&t->save_every, t->at.epoch) || found_best(t))
        TRY(save(t));
    return STATUS_OK;
}

/* An epoch's time is not another rank's evaluation: it begins when all have come. */
static status meet_all(trainer *t)
{
    TRY(timeline_enter(&t->rank->timeline, MOMENT_BARRIER));
    TRY(process_group_barrier(t->rank->group));
    return timeline_enter(&t->rank->timeline, MOMENT_BETWEEN);
}

static status run_epoch(trainer *t)
{
    rank_context *rank = t->rank;
    progress_epoch_start(t->records.progress);
    timeline_begin_epoch(&rank->timeline, t->at.epoch);
    TRY(meet_all(t));
    t->epoch_began_ns = clock_now_ns() - (int64_t)(t->at.epoch_s * 1e9);
    TRY(train_epoch(t));
    bool inside = t->at.step_in_epoch < t->epoch_steps && !t->reached;
    if (rank->stop.agreed || (rank->stop.paused && inside))
        return STATUS_OK;
    TRY(end_epoch(t, clock_seconds(clock_now_ns() - t->epoch_began_ns - t->tested_ns)));
    timeline_end_epoch(&rank->timeline);
    return STATUS_OK;
}

static status begin_run(trainer *t)
{
    rank_context *rank = t->rank;
    t->epochs = rank->opts->dry_run ? t->at.epoch + 1 : rank->opts->epochs;
    int64_t epochs = t->epochs - t->at.epoch;
    if (epochs > 0)
        TRY(memory_alloc(sizeof(double) * (size_t)epochs, (void **)&t->result->train_s));
    int meetings = MEETINGS * (int)rank->opts->accum * loader_steps(rank->loader);
    return rank->place.world_size > 1
               ? timeline_measure_waiting(&rank->timeline, rank->group, meetings)
               : STATUS_OK;
}

static status test_at_end(trainer *t)
{
    const evaluation *found = &t->result->test;
    if (!validates(t->rank) || t->rank->settings.eval_every.count == 0 || t->rank->stop.diverged)
        return STATUS_OK;
    TRY(test_on(t, &t->rank->test_set, t->logits, &t->result->test));
    if (!isfinite(found->loss))
        note_diverged(t, "the test loss");
    bool has_ended = t->at.epoch > 0 && t->at.step_in_epoch == 0;
    run_records_test(
        &t->records,
        &(test_facts){.found = found, .number = t->at.step, .epoch = t->at.epoch - has_ended});
    return STATUS_OK;
}

static status end_run(trainer *t)
{
    rank_context *rank = t->rank;
    if (t->reached)
        progress_line(t->records.progress, "stopped: %s accuracy of %.2f%% reaches --target-acc %g",
                      validates(rank) ? "a validation" : "an",
                      100 * evaluation_accuracy(t->monitored), rank->opts->target_acc);
    if (t->result->epochs == 0) { /* resumed after its last epoch */
        progress_line(t->records.progress, "nothing left to train: %lld of %lld epochs are done",
                      (long long)t->at.epoch, (long long)t->epochs);
        if (rank->settings.eval_every.count > 0)
            TRY(test(t));
        if (rank->link != NULL) /* a rank 0 that is lost may not have written the end */
            TRY(save(t));
    }
    return test_at_end(t);
}

bool trainer_is_done(const trainer *t)
{
    return t->at.epoch >= t->epochs || t->reached;
}

status trainer_run(trainer *t)
{
    TRY(begin_run(t));
    while (!trainer_is_done(t) && !preempt_ends_round(&t->rank->stop))
        TRY(run_epoch(t));
    return t->rank->stop.agreed || !trainer_is_done(t) ? STATUS_OK : end_run(t);
}

status trainer_open(rank_context *rank, trainer *out)
{
    bool graphs = rank->opts->cuda_graph && rank->dev->ops->accelerator != NULL &&
                  strategy_of(rank->opts)->can_be_captured &&
                  process_group_can_be_captured(rank->group);
    out->rank = rank;
    out->graphs = (step_graphs){.timeline = &rank->timeline, .enabled = graphs};
    out->result->graph = graphs;
    if (rank->dev->stream != NULL && !graphs)
        TRY(timeline_time_stream(&rank->timeline));
    out->monitored = validates(rank) ? &out->result->validation : &out->result->test;
    if (!rank->opts->dry_run && rank->settings.eval_every.count > 0)
        TRY(memory_alloc(sizeof *out->logits * rank->test_set.count * NETWORK_CLASSES,
                         (void **)&out->logits));
    return run_records_open(rank, &out->records);
}

void trainer_close(trainer *t)
{
    step_graphs_close(&t->graphs);
    run_records_close(&t->records);
    free(t->logits);
    t->logits = NULL;
}
