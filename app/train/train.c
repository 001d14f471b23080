/* Training as one rank: the loop, and what happens between epochs. */
#include "app/train/train.h"

#include "app/train/evaluate.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

enum { MEETINGS = 2 }; /* of a step, at most: gradients and parameters */

/* StepLR with step_size 1, multiplied up as PyTorch does it. */
static double lr_of_epoch(const training *t, int64_t epoch)
{
    double lr = t->j.lr;
    for (int64_t i = 0; i < epoch; i++)
        lr *= t->j.opts->gamma;
    return lr;
}

/* One optimizer step: done when it returns, or enqueued on an accelerator. */
static status enqueue_step(void *ctx, int step)
{
    training *t = ctx;
    job *j = &t->j;
    int micro_steps = loader_micro_steps(j->load, step);
    rank_bytes before = job_bytes(j, 0), after;
    for (int micro = 0; micro < micro_steps; micro++) {
        step_batch b = {.first = micro == 0, .last = micro + 1 == micro_steps};
        TRY(timeline_enter(&j->timeline, MOMENT_LOAD));
        TRY(loader_next(j->load, &b.in));
        TRY(j->mode->gradients(t, &b)); /* forward, backward */
    }
    TRY(j->mode->update(t)); /* synchronise, step */
    after = job_bytes(j, 0);
    t->step_bytes = (rank_bytes){after.sent - before.sent, after.received - before.received};
    return timeline_enter(&j->timeline, MOMENT_BETWEEN);
}

static status train_step(training *t, int step, float lr)
{
    job *j = &t->j;
    step_plan plan = {.scale_loss = j->dev->precision == PRECISION_F16,
                      .stop = rank_signals_asked(&t->signals) != 0 ? 1.0f : 0.0f};
    run_trace_begin_step(&j->trace, t->at.step + 1);
    TRY(timeline_enter(&j->timeline, MOMENT_LOAD));
    rank_page_step(j->page, t->at.epoch, t->at.step + 1);
    inject_before_step(&t->fault, t->at.step + 1);
    loader_begin_step(j->load, step, &plan);
    optimizer_begin_step(j->opt, lr, &plan);
    TRY(j->dev->ops->begin_step(j->dev, &plan, j->numbers, j->stop.flag));
    if (j->mode->begin != NULL)
        TRY(j->mode->begin(t, &plan));
    int samples = loader_step_samples(j->load, step);
    TRY(step_graphs_run(&t->graphs, samples, step, enqueue_step, t));
    t->results.bytes.sent += t->step_bytes.sent; /* a replayed step's are its recording's */
    t->results.bytes.received += t->step_bytes.received;
    t->results.steps++;
    t->epoch_samples += (uint32_t)samples;
    run_trace_end_step(&j->trace);
    return STATUS_OK;
}

/* Loss and images of the epoch as last read, over all ranks and with what a resumed epoch began
 * with. */
static status total_epoch(training *t)
{
    double totals[] = {t->so_far.loss_sum, (double)t->epoch_samples};
    TRY(process_group_all_reduce(t->j.group, totals, 2, DTYPE_F64, REDUCE_SUM, NULL));
    t->at.epoch_loss = t->began.epoch_loss + totals[0];
    t->at.epoch_samples = t->began.epoch_samples + (int64_t)totals[1];
    return STATUS_OK;
}

/* A disk that is full does not end the training: it says so and goes on. What was written before
 * stays. The run's end looks at what is there, and exits with the disk's code if the last is not.
 */
static status save(training *t)
{
    if (t->j.place.rank != 0 || !t->j.opts->save_model)
        return STATUS_OK;
    TRY(timeline_enter(&t->j.timeline, MOMENT_CHECKPOINT));
    if (run_folder_save(t->run_dir, &t->j, &t->at, t->saved_step) == STATUS_OK) {
        t->saved_step = t->at.step;
    } else {
        LOG_E("checkpoint not written: %s", status_message());
        t->results.failed_checkpoints++;
    }
    return timeline_enter(&t->j.timeline, MOMENT_BETWEEN);
}

static status log_step(training *t, int step, int steps)
{
    job *j = &t->j;
    if (!report_wants_step(&t->rep, step, steps))
        return STATUS_OK;
    int before_last = (loader_micro_steps(j->load, step) - 1) * j->batch_size;
    step_line line = {.epoch = t->at.epoch,
                      .now_ns = clock_now_ns(),
                      .step = step,
                      .steps = steps,
                      .samples = t->epoch_samples,
                      .batch_n = loader_step_samples(j->load, step) - before_last};
    return step_log_add(&t->log, &t->rep, network_totals(j->net), &line);
}

static int order_of_epoch(const training *t, int64_t epoch)
{
    return (int)inject_order(&t->fault, epoch);
}

/* What follows a step on the host: the first one's end, the next epoch's order while an accelerator
 * is still at work on this one, the log, and a checkpoint where one is due or all ranks stop. */
static status follow_step(training *t, int step, int steps)
{
    job *j = &t->j;
    bool last = step + 1 == steps;
    if (!t->stepped) {
        TRY(j->dev->ops->synchronize(j->dev));
        t->stepped = true;
        t->results.setup_s = clock_seconds(clock_now_ns() - t->started_ns);
    }
    t->at.step++;
    t->at.step_in_epoch++;
    if (last && t->at.epoch + 1 < t->epochs)
        TRY(loader_draw_epoch(j->load, order_of_epoch(t, t->at.epoch + 1)));
    TRY(log_step(t, step, steps));
    TRY(preempt_look(&j->stop, last ? PREEMPT_NOW : PREEMPT_CHEAPLY));
    if (!j->stop.agreed && !save_every_step_is_due(&t->every, t->at.step))
        return STATUS_OK;
    TRY(network_read_score(j->net, &t->so_far));
    TRY(total_epoch(t));
    return save(t);
}

/* Shuffled epochs of the same order train worse and say nothing: the bug of a sampler whose
 * set_epoch nobody calls. */
static void warn_of_repetition(const training *t)
{
    enum { FEW = 20 }; /* samples, that may come twice in the same order by chance */
    const job *j = &t->j;
    if (j->place.rank == 0 && loader_repeats_order(j->load) && j->opts->shuffle &&
        loader_samples(j->load) > FEW)
        LOG_W("epoch %lld has its images in the order of epoch %lld: the sampler was not told of "
              "the new epoch (set_epoch)",
              (long long)t->at.epoch + 1, (long long)t->at.epoch);
}

static status begin_epoch(training *t)
{
    job *j = &t->j;
    timeline_begin_epoch(&j->timeline);
    TRY(loader_start_epoch(j->load, order_of_epoch(t, t->at.epoch)));
    warn_of_repetition(t);
    TRY(network_reset_score(j->net));
    t->began = t->at;
    t->epoch_samples = 0;
    return timeline_begin_steps(&j->timeline);
}

static status train_epoch(training *t)
{
    job *j = &t->j;
    int steps = inject_steps(&t->fault, j->opts->dry_run ? 1 : loader_steps(j->load));
    float lr = (float)lr_of_epoch(t, t->at.epoch);
    TRY(begin_epoch(t));
    for (int step = (int)t->at.step_in_epoch; step < steps && !j->stop.agreed; step++) {
        TRY(train_step(t, step, lr));
        TRY(follow_step(t, step, steps));
    }
    TRY(step_log_flush(&t->log, &t->rep));
    TRY(network_read_score(j->net, &t->so_far));
    TRY(timeline_end_epoch(&j->timeline));
    t->results.last_loss = t->so_far.last_loss;
    return STATUS_OK;
}

static bool reached_target(const options *o, const evaluation *test)
{
    double target = o->target_acc > 1 ? o->target_acc / 100 : o->target_acc;
    return o->target_acc >= 0 && evaluation_accuracy(test) >= target;
}

/* Is the epoch of this number, from 1, tested? */
static bool test_is_due(const options *o, int64_t epoch, int64_t epochs)
{
    return o->eval_every > 0 && (epoch % o->eval_every == 0 || epoch == epochs);
}

static status test(training *t)
{
    job *j = &t->j;
    TRY(timeline_enter(&j->timeline, MOMENT_EVALUATION));
    TRY(evaluate(j, &t->results.test));
    return timeline_enter(&j->timeline, MOMENT_BETWEEN);
}

/* Test and report, and a checkpoint where one is due. */
static status end_epoch(training *t, double train_s, bool *reached)
{
    job *j = &t->j;
    run_results *results = &t->results;
    results->train_s[results->epochs++] = train_s;
    TRY(total_epoch(t));
    TRY(timeline_settle_epoch(&j->timeline, j->group));
    results->images_per_epoch = t->at.epoch_samples - t->began.epoch_samples;
    bool tested = test_is_due(j->opts, t->at.epoch + 1, t->epochs);
    if (tested)
        TRY(test(t));
    report_epoch(&t->rep, t->at.epoch, train_s, results->images_per_epoch,
                 t->at.epoch_loss / (double)t->at.epoch_samples, tested ? &results->test : NULL);
    t->at = (progress){.epoch = t->at.epoch + 1, .step = t->at.step};
    *reached = tested && reached_target(j->opts, &results->test);
    if (*reached || t->at.epoch == t->epochs || save_every_epoch_is_due(&t->every, t->at.epoch))
        TRY(save(t));
    return STATUS_OK;
}

status train_epochs(training *t)
{
    job *j = &t->j;
    run_results *results = &t->results;
    t->epochs = j->opts->dry_run ? t->at.epoch + 1 : j->opts->epochs;
    if (t->epochs > t->at.epoch)
        TRY(memory_alloc(sizeof(double) * (size_t)(t->epochs - t->at.epoch),
                         (void **)&results->train_s));
    bool reached = false;
    if (j->place.world_size > 1)
        TRY(timeline_note_meetings(&j->timeline, j->group, MEETINGS * loader_steps(j->load)));
    while (t->at.epoch < t->epochs && !reached) {
        report_epoch_start(&t->rep);
        trace_begin_numbered(j->trace.lane, "epoch", t->at.epoch + 1);
        trace_begin(j->trace.lane, NULL, "barrier");
        TRY(process_group_barrier(j->group)); /* an epoch's time is not another rank's evaluation */
        trace_end(j->trace.lane);
        int64_t started = clock_now_ns();
        TRY(train_epoch(t));
        if (j->stop.agreed)
            return STATUS_OK;
        TRY(end_epoch(t, clock_seconds(clock_now_ns() - started), &reached));
        trace_end(j->trace.lane);
    }
    if (results->epochs == 0) { /* resumed behind its last epoch */
        report_line(&t->rep, "nothing left to train: %lld of %lld epochs are done",
                    (long long)t->at.epoch, (long long)t->epochs);
        if (j->opts->eval_every > 0)
            TRY(test(t));
    }
    return STATUS_OK;
}
