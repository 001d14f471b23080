/* The train command: one rank, from its start to its exit code. */
#include "app/train/train_command.h"

#include "app/common/exit_codes.h"
#include "app/common/run_log.h"
#include "app/train/agreement.h"
#include "app/train/explanation.h"
#include "app/train/failure.h"
#include "app/train/rounds.h"
#include "app/train/run_end.h"
#include "app/train/run_facts.h"
#include "app/train/run_identity.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "model/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static status read_settings(training *t)
{
    const rank_context *rank = &t->rank;
    inject *fault = &t->trainer.fault;
    TRY(interval_parse("--save-every", 1, rank->opts->save_every, &t->trainer.save_every));
    TRY(inject_parse(rank->opts->inject, fault));
    int64_t attempt = rank->place.round > 0 ? rank->place.round - 1 : rank->place.restart_count;
    if (attempt > 0 && fault->attempt != attempt) /* fewer ranks may be left than it names */
        fault->kind = INJECT_NONE;
    return fault_aim(fault, rank->place.rank, rank->place.world_size, (int)attempt);
}

status train_check_init(const options *opts, int *exit_code)
{
    model_kind kind = MODEL_MLP;
    if (opts->init == NULL)
        return STATUS_OK;
    *exit_code = EXIT_CODE_DATA;
    TRY(checkpoint_model_kind(opts->init, &kind));
    *exit_code = EXIT_CODE_USAGE;
    if (strcmp(model_kind_name(kind), opts->model) != 0)
        return FAIL(STATUS_INVALID,
                    "--init: %s holds the model %s, and this run trains %s: give --model=%s",
                    opts->init, model_kind_name(kind), opts->model, model_kind_name(kind));
    return STATUS_OK;
}

/* --init: rank 0's weights, of PyTorch or of another run. */
static status load_weights(const rank_context *rank, int *exit_code)
{
    const char *path = rank->opts->init;
    bool finite = true;
    TRY(train_check_init(rank->opts, exit_code));
    *exit_code = EXIT_CODE_DATA;
    TRY(checkpoint_load_model(path, rank->net));
    TRY(network_is_finite(rank->net, &finite));
    return finite ? STATUS_OK
                  : FAIL(STATUS_INVALID,
                         "--init: %s holds a weight that is not finite: give another file", path);
}

static status resume(training *t)
{
    checkpoint_state best = {0};
    world_change change = {0};
    TRY(run_folder_resume(&t->folder, &t->rank, &t->trainer.at, &best, &change));
    if (change.was.size > 0)
        TRY(result_note_change(&t->result, &t->rank, &change, &t->trainer.at));
    t->result.best = (test_found){best.test, best.step, best.epoch + (best.step_in_epoch > 0)};
    return STATUS_OK;
}

/* In the folder's log: when the run began or went on, and by which command. */
static void log_start(const rank_context *rank, const position *at)
{
    char place[PROGRESS_PLACE_BYTES], again[48] = "";
    int restarts = rank->place.restart_count;
    char *words = shell_words_line(rank->opts->command_line);
    progress_name_place(at->epoch, at->step_in_epoch, place);
    if (restarts > 0)
        snprintf(again, sizeof again, ", restart %d", restarts);
    run_log_line("%s%s%s: %s", at->step > 0 ? "the run resumes after " : "the run begins",
                 at->step > 0 ? place : "", again, words != NULL ? words : "");
    free(words);
}

/* Rank 0 opens the run's folder and what it starts from: nothing, weights or a checkpoint. */
static status open_start(training *t)
{
    rank_context *rank = &t->rank;
    if (rank->opts->init != NULL)
        TRY(load_weights(rank, &t->init_code));
    t->init_code = 0;
    TRY(run_folder_open(rank, &t->folder));
    if (!t->folder.is_dry)
        run_log_open(t->folder.path);
    if (run_folder_resume_mode(rank) != RESUME_NEVER)
        TRY(resume(t));
    log_start(rank, &t->trainer.at);
    return STATUS_OK;
}

/* All ranks then know the best test that rank 0 has found in the folder. */
static status share_best(training *t)
{
    process_group *group = t->rank.group;
    test_found *best = &t->result.best;
    int64_t counts[] = {best->test.images, best->test.correct, best->step, best->epoch};
    double loss = best->test.loss;
    TRY(process_group_broadcast(group, counts, 4, DTYPE_I64, 0, NULL));
    TRY(process_group_broadcast(group, &loss, 1, DTYPE_F64, 0, NULL));
    *best = (test_found){{counts[0], counts[1], loss}, counts[2], counts[3]};
    return STATUS_OK;
}

/* All ranks then stand where rank 0 stands; if it stands nowhere, it alone says why. */
static status start_run(training *t)
{
    rank_context *rank = &t->rank;
    position *at = &t->trainer.at;
    status_kept why;
    status st = rank->place.rank == 0 ? open_start(t) : STATUS_OK;
    status_keep(&why);
    int64_t counts[] = {at->epoch,       at->step_in_epoch, at->step,       at->epoch_samples,
                        at->epoch_first, at->world_changes, st == STATUS_OK};
    status told = process_group_broadcast(rank->group, counts, 7, DTYPE_I64, 0, NULL);
    if (st != STATUS_OK) {
        status_restore(&why);
        return st;
    }
    TRY(told);
    t->refused = counts[6] == 0;
    if (t->refused)
        return FAIL(STATUS_PEER, "rank 0 has refused to start the run");
    if (t->link != NULL)
        TRY(rounds_share_folder(t));
    if (rank->opts->init == NULL && run_folder_resume_mode(rank) == RESUME_NEVER)
        return STATUS_OK;
    TRY(process_group_broadcast(rank->group, &at->epoch_loss, 1, DTYPE_F64, 0, NULL));
    *at = (position){counts[0], counts[1], counts[2], at->epoch_loss, counts[3], counts[4],
                     counts[5], 0,         0};
    TRY(share_best(t));
    return strategy_scatter_state(rank->strategy, 0);
}

/* In --event-log, with the times of a change of rounds. */
static status log_opening(training *t)
{
    bool was_in_one = t->left_ns != 0;
    event_log_opening opening = {
        .left_s = was_in_one ? clock_seconds(t->left_ns - t->failed_ns) : -1,
        .waited_s = was_in_one ? clock_seconds(t->joined_ns - t->left_ns) : -1,
        .opened_s = clock_seconds(clock_now_ns() - t->trainer.records.started_ns)};
    TRY(agreement_on_state(&t->rank, strategy_shared_optimizer(t->rank.strategy), &opening.state));
    run_records_round(&t->trainer.records, &t->trainer.at, &opening);
    return STATUS_OK;
}

static status begin(training *t)
{
    bool continues = false;
    TRY(rounds_continue(t, &continues));
    if (!continues)
        TRY(start_run(t));
    if (t->rank.sums[0] == '\0') /* the run begins */
        run_identity_continue_sums(&t->rank, "");
    t->trainer.began = t->trainer.at;
    strategy_commit_begin(t->rank.strategy);
    t->runs = true;
    return log_opening(t);
}

/* A run without its config.json is still a run. */
static void write_config(training *t, json_t *run)
{
    const rank_context *rank = &t->rank;
    const run_start start = {rank->opts, run, t->result.date, t->trainer.at.step};
    if (rank->place.rank == 0 && run_folder_write_config(&t->folder, &start) != STATUS_OK)
        LOG_W("settings not written: %s", status_text());
}

/* As write_config: a run whose numbers are not kept is still a run. */
static void open_metrics(training *t)
{
    const rank_context *rank = &t->rank;
    const metrics_options settings = {.folder = t->folder.path,
                                      .step = t->trainer.at.step,
                                      .epochs = t->trainer.at.epoch,
                                      .started_ns = t->trainer.records.started_ns,
                                      .cores = &rank->binding.before};
    if (rank->place.rank == 0 && !t->folder.is_dry &&
        metrics_open(&settings, &t->trainer.records.metrics) != STATUS_OK)
        LOG_W("no metrics are written: %s", status_text());
}

/* A trace that cannot be written does not undo what the run has done, but shows in its exit code.
 */
static void write_trace(training *t, trace_ending ending)
{
    rank_context *rank = &t->rank;
    int ranks = 0;
    if (run_trace_write(&rank->trace, rank->dev->stream_trace, ending, &ranks) != STATUS_OK) {
        LOG_E("trace not written: %s", status_text());
        t->output_failed = true;
    }
    if (ranks > 0 && rank->place.rank > 0)
        LOG_W("rank 0 is gone: rank %d has written the trace, %s", rank->place.rank,
              rank->opts->trace);
    char what[48];
    snprintf(what, sizeof what, "trace (%d of %d ranks)", ranks, rank->place.world_size);
    if (ranks > 0)
        progress_path(&t->progress, what, rank->opts->trace);
    if (ranks > 0)
        run_end_draw_trace(t);
}

static status leave(training *t, trace_ending ending)
{
    write_trace(t, ending);
    return rank_context_leave(&t->rank);
}

/* The result, by rank 0. In an elastic run the others may be lost after it. */
static status finish(training *t, trace_ending ending)
{
    bool says = t->rank.place.rank == 0;
    TRY(result_finish(&t->result, &t->rank));
    TRY(run_end_write_eval(t));
    TRY(rounds_finish(t));
    if (says) {
        TRY(run_folder_check_own(&t->folder, &t->rank));
        TRY(run_end_print(t));
        run_end_write_report(t);
    }
    t->is_done = says;
    status st = leave(t, ending);
    if (t->link == NULL || !says || !rounds_end_with(st))
        return st;
    LOG_W("the run is done, but a rank was lost at its end: %s", status_text());
    return STATUS_OK;
}

static void say_start(training *t, const json_t *run)
{
    const options *o = t->rank.opts;
    const position *at = &t->trainer.at;
    if (t->rank.place.rank == 0)
        progress_header(&t->progress, t->folder.path, at->epoch, at->step_in_epoch);
    if (t->rank.place.rank == 0 && o->init != NULL && at->step == 0)
        progress_path(&t->progress, "starting from", o->init);
    if (t->rank.place.rank == 0 && o->global_batch_size > 0 &&
        rank_context_global_batch(&t->rank) != o->global_batch_size) /* of an elastic run */
        progress_line(&t->progress, "%d ranks cannot share --global-batch-size=%lld: it is %lld",
                      t->rank.place.world_size, (long long)o->global_batch_size,
                      (long long)rank_context_global_batch(&t->rank));
    if (o->explain && t->rank.place.rank == 0)
        explanation_say(&t->progress, run);
    if (o->dry_run)
        progress_line(&t->progress, "dry run: one step and one test, nothing is saved");
}

/* What the run is, as its folder and its log have it. */
static status tell_start(training *t)
{
    json_t *run = json_object();
    run_facts_add(run, &t->rank);
    run_facts_add_place(run, &t->rank);
    status st = run_facts_add_hosts(run, &t->rank);
    if (st == STATUS_OK) { /* the last wait for other ranks before the first step */
        rank_signals_train(&t->signals);
        write_config(t, run);
        open_metrics(t);
        say_start(t, run);
    }
    json_decref(run);
    return st;
}

static status run(training *t, int *exit_code)
{
    *exit_code = EXIT_CODE_USAGE;
    TRY(read_settings(t));
    *exit_code = EXIT_CODE_CHECKPOINT;
    status st = begin(t);
    if (t->init_code != 0)
        *exit_code = t->init_code;
    TRY(st);
    *exit_code = EXIT_CODE_INTERNAL;
    TRY(tell_start(t));
    trace_end(t->rank.trace.lane); /* of the setup */
    TRY(trainer_run(&t->trainer));
    progress_close_bar(&t->progress);
    bool diverged = t->rank.stop.diverged;
    if (t->rank.stop.agreed && !diverged) {
        run_end_say_stopped(t);
        return leave(t, TRACE_STOPPED);
    }
    if (t->rank.stop.paused && !diverged && !trainer_is_done(&t->trainer))
        return STATUS_OK;
    if (diverged)
        run_end_say_diverged(t);
    return finish(t, diverged ? TRACE_STOPPED : TRACE_DONE);
}

/* Says more of a failure than its message, while the rank is still open. */
static status explain(training *t, status st)
{
    status_kept why;
    st = strategy_explain(t->rank.strategy, st);
    st = failure_explain(&t->rank, st);
    status_keep(&why);
    (void)run_records_say(&t->trainer.records);
    write_trace(t, TRACE_FAILED);
    status_restore(&why);
    return st;
}

static status run_or_explain(training *t, int *exit_code)
{
    rank_signals_set_rank(&t->signals, &t->rank);
    status st = run(t, exit_code);
    t->survives = rounds_survives(t, st);
    if (st != STATUS_OK && !t->survives)
        st = explain(t, st);
    if (rounds_end_with(st) && t->link != NULL && !t->refused &&
        !rank_context_outlives_rounds(t->rank.opts) && run_folder_takes_checkpoints(t->rank.opts))
        LOG_W("--mode=%s, --backend=%s: this process cannot go on with other ranks; new ones go on "
              "from the newest checkpoint",
              strategy_of(t->rank.opts)->name, t->rank.opts->backend);
    rank_signals_set_rank(&t->signals, NULL);
    return st;
}

static status open_and_run(training *t, const options *opts, int *exit_code)
{
    const rank_context_options how = {opts, &t->place, t->link, failure_end_stuck};
    status st = rank_context_open(&how, &t->rank, exit_code);
    t->survives = st != STATUS_OK && rounds_survives(t, st);
    if (st != STATUS_OK)
        return t->survives ? st : failure_explain(&t->rank, st);
    t->survives = false;
    progress_open(&t->rank, &t->signals, t->trainer.records.started_ns, &t->progress);
    TRY(trainer_open(&t->rank, &t->trainer));
    return run_or_explain(t, exit_code);
}

/* All that belongs to one round. */
static void close_round(training *t)
{
    progress_close_bar(&t->progress);
    trainer_close(&t->trainer);
    rank_context_close(&t->rank);
    run_folder_close(&t->folder);
}

static void begin_round(training *t, int64_t started_ns)
{
    t->trainer = (trainer){
        .signals = &t->signals,
        .folder = &t->folder,
        .result = &t->result,
        .records = {.progress = &t->progress, .result = &t->result, .started_ns = started_ns}};
    t->progress = (progress){0};
    t->runs = t->survives = t->is_done = false;
}

/* The numbers of a round are those of a start of the run; what is known of the run stays. */
static void forget_round(training *t)
{
    result known = {.best = t->result.best,
                    .failed_checkpoints = t->result.failed_checkpoints,
                    .changes = json_incref(t->result.changes)};
    memcpy(known.date, t->result.date, sizeof known.date);
    result_close(&t->result);
    t->result = known;
}

/* In the log, as main() does at the start. */
static void name_rank(const rendezvous_place *place)
{
    char prefix[32] = "";
    if (place->world_size > 1)
        snprintf(prefix, sizeof prefix, "rank %d", place->rank);
    log_set_prefix(prefix);
}

/* After a round that this process survives: keeps the state, and waits for the next. */
static status pass_to_next_round(training *t, status ended)
{
    t->failed_ns = clock_now_ns();
    if (ended != STATUS_OK)
        LOG_W("round %lld ends for rank %d: %s", (long long)t->place.round, t->place.rank,
              status_text());
    status st = rounds_keep(t);
    close_round(t);
    run_log_leave();
    forget_round(t);
    if (st == STATUS_OK)
        st = rounds_await_next(t, &t->place);
    name_rank(&t->place);
    return st;
}

static status run_rounds(training *t, const options *opts, int *exit_code)
{
    TRY(rank_signals_start(&t->signals));
    TRY(elastic_open(&t->link));
    for (;;) {
        elastic_begin_round(t->link, t->place.round, &t->place.breaker);
        status st = open_and_run(t, opts, exit_code);
        if (!t->survives)
            return st;
        *exit_code = EXIT_CODE_RENDEZVOUS;
        TRY(pass_to_next_round(t, st));
        begin_round(t, t->joined_ns);
    }
}

int train_command(const options *opts, const rendezvous_place *place, int64_t started_ns)
{
    training t = {.folder.lock_fd = -1, .kept.step = KEPT_STATE_NONE, .place = *place};
    int exit_code = EXIT_CODE_INTERNAL;
    begin_round(&t, started_ns);
    run_config_date(t.result.date);
    status st = run_rounds(&t, opts, &exit_code);
    bool stopped = t.rank.stop.agreed, diverged = t.rank.stop.diverged;
    close_round(&t);
    rank_signals_stop(&t.signals);
    elastic_close(t.link);
    kept_state_free(&t.kept);
    result_close(&t.result);
    if (st != STATUS_OK) {
        exit_code = t.refused ? EXIT_CODE_PEER : exit_code_failed(st, exit_code);
        failure_write_error_file(st, t.place.rank, exit_code);
        return exit_code;
    }
    if (diverged)
        return EXIT_CODE_DIVERGED;
    if (t.output_failed)
        return EXIT_CODE_CHECKPOINT;
    return stopped ? EXIT_CODE_PREEMPTED : EXIT_SUCCESS;
}
