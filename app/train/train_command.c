/* The train command: one rank, from its start to its exit code. */
#include "app/train/train_command.h"

#include "app/common/exit_codes.h"
#include "app/common/run_files.h"
#include "app/common/run_log.h"
#include "app/report/run_page.h"
#include "app/train/eval_document.h"
#include "app/train/failure.h"
#include "app/train/run_facts.h"
#include "app/train/trainer.h"
#include "base/log.h"
#include "base/shell_words.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"
#include "model/checkpoint_folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All parts of one rank's run. */
typedef struct training {
    rank_signals signals;
    rank_context rank;
    run_folder folder; /* rank 0's */
    progress progress;
    metrics *metrics; /* rank 0's */
    result result;
    trainer trainer;
    bool output_failed; /* something is not on disk that was asked for */
    bool refused;       /* rank 0 has said why the run does not start */
} training;

static status read_settings(training *t)
{
    const rank_context *rank = &t->rank;
    inject *fault = &t->trainer.fault;
    TRY(interval_parse("--save-every", 1, rank->opts->save_every, &t->trainer.save_every));
    TRY(inject_parse(rank->opts->inject, fault));
    return fault_aim(fault, rank->place.rank, rank->place.world_size, rank->place.restart_count);
}

/* --init: rank 0's weights, of PyTorch or of another run. */
static status load_weights(rank_context *rank)
{
    const char *path = rank->opts->init;
    model_kind kind = MODEL_MLP;
    TRY(checkpoint_model_kind(path, &kind));
    if (kind != rank->settings.model)
        return FAIL(STATUS_INVALID,
                    "--init: %s holds the model %s, and this run trains %s: give --model=%s", path,
                    model_kind_name(kind), model_kind_name(rank->settings.model),
                    model_kind_name(kind));
    bool finite = true;
    TRY(checkpoint_load_model(path, rank->net));
    TRY(network_is_finite(rank->net, &finite));
    return finite ? STATUS_OK
                  : FAIL(STATUS_INVALID,
                         "--init: %s holds a weight that is not finite: give another file", path);
}

static status resume(training *t)
{
    checkpoint_state best = {0};
    TRY(run_folder_resume(&t->folder, &t->rank, &t->trainer.at, &best));
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
        TRY(load_weights(rank));
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
    int64_t counts[] = {at->epoch,         at->step_in_epoch, at->step,
                        at->epoch_samples, at->epoch_first,   st == STATUS_OK};
    status told = process_group_broadcast(rank->group, counts, 6, DTYPE_I64, 0, NULL);
    if (st != STATUS_OK) {
        status_restore(&why);
        return st;
    }
    TRY(told);
    t->refused = counts[5] == 0;
    if (t->refused)
        return FAIL(STATUS_PEER, "rank 0 has refused to start the run");
    if (rank->opts->init == NULL && run_folder_resume_mode(rank) == RESUME_NEVER)
        return STATUS_OK;
    TRY(process_group_broadcast(rank->group, &at->epoch_loss, 1, DTYPE_F64, 0, NULL));
    *at = (position){counts[0], counts[1], counts[2],        at->epoch_loss,
                     counts[3], counts[4], at->world_changes};
    TRY(share_best(t));
    return rank_context_broadcast(rank);
}

/* A run without its config.json is still a run. */
static status write_config(training *t)
{
    rank_context *rank = &t->rank;
    json_t *run = json_object();
    run_facts_add(run, rank);
    run_facts_add_place(run, rank);
    status st = run_facts_add_hosts(run, rank);
    if (st == STATUS_OK && rank->place.rank == 0 &&
        run_folder_write_config(&t->folder, rank, run, t->result.date) != STATUS_OK)
        LOG_W("settings not written: %s", status_text());
    json_decref(run);
    return st;
}

/* As write_config: a run whose numbers are not kept is still a run. */
static void open_metrics(training *t)
{
    const rank_context *rank = &t->rank;
    const metrics_options settings = {.folder = t->folder.path,
                                      .step = t->trainer.at.step,
                                      .epochs = t->trainer.at.epoch,
                                      .started_ns = t->trainer.started_ns,
                                      .cores = &rank->binding.before};
    if (rank->place.rank == 0 && !t->folder.is_dry &&
        metrics_open(&settings, &t->metrics) != STATUS_OK)
        LOG_W("no metrics are written: %s", status_text());
    t->trainer.metrics = t->metrics;
}

/* Whether the run's folder holds what the run has come to. Says so if it does not, and if
 * checkpoints are missing that later ones have made up for. */
static bool check_saved(training *t)
{
    if (run_folder_check_saved(&t->folder, &t->trainer.at) != STATUS_OK) {
        LOG_E("the end of the run is not on disk: %s", status_text());
        t->output_failed = true;
        return false;
    }
    if (t->result.failed_checkpoints > 0)
        LOG_W("%d of this run's checkpoints could not be written; the last one is there, whole",
              t->result.failed_checkpoints);
    return true;
}

/* If the saved model is not the best one. */
static void say_best(training *t)
{
    const test_found *best = &t->result.best;
    if (!run_folder_takes_checkpoints(t->rank.opts) || best->test.images == 0)
        return;
    if (t->folder.best_step != best->step) {
        LOG_E("the best checkpoint, of step %lld, is not on disk", (long long)best->step);
        t->output_failed = true;
    } else if (best->step != t->trainer.at.step) {
        progress_line(
            &t->progress, "best: %.2f%% of the %s images right, in epoch %lld, step %lld: %s/%s/%s",
            100.0 * (double)best->test.correct / (double)best->test.images,
            run_tests_validate(&t->trainer.tests) ? "validation" : "test", (long long)best->epoch,
            (long long)best->step, t->folder.path, CHECKPOINT_FOLDER, CHECKPOINT_BEST);
    }
}

/* All that --quiet leaves of the log, as eval prints it. */
static void print_result_line(const training *t)
{
    const evaluation *test = &t->result.test;
    printf("%s: %s, ", t->rank.opts->dry_run ? "dry run" : t->folder.path,
           model_kind_name(t->rank.settings.model));
    if (test->images > 0)
        printf("accuracy %.2f%% (%lld/%lld), loss %.4f\n", 100 * evaluation_accuracy(test),
               (long long)test->correct, (long long)test->images, test->loss);
    else
        printf("train loss %.4f\n", t->result.last_loss);
}

/* The JSON line, on stdout if it was asked for and always in the run's folder. */
static status print_results(training *t)
{
    char *line = NULL;
    TRY(result_print(&t->result, &t->rank, &line));
    status st = run_folder_write_result(&t->folder, line);
    if (t->rank.opts->json)
        printf("%s\n", line);
    else if (t->rank.opts->quiet && !t->rank.stop.diverged)
        print_result_line(t);
    free(line);
    if (st != STATUS_OK) {
        LOG_E("results not written: %s", status_text());
        t->output_failed = true;
    }
    if (run_folder_takes_checkpoints(t->rank.opts) && !t->rank.stop.diverged && check_saved(t))
        progress_line(&t->progress, "saved: %s/model.safetensors", t->folder.path);
    say_best(t);
    if (!t->rank.stop.diverged && t->result.epochs > 0)
        progress_end(&t->progress, t->result.epochs);
    return STATUS_OK;
}

/* eval.json: what the run's last test says of each class. All ranks call it. A run without it is
 * still a run. */
static status write_eval(training *t)
{
    rank_context *rank = &t->rank;
    const float *logits = t->trainer.tests.logits;
    if (logits == NULL || t->result.test.images == 0 || rank->stop.diverged)
        return STATUS_OK;
    TRY(evaluate_gather(rank, t->trainer.tests.logits));
    if (rank->place.rank != 0)
        return STATUS_OK;
    const eval_subject subject = {.net = rank->net,
                                  .step = t->trainer.at.step,
                                  .location = &rank->location,
                                  .set = &rank->test_set,
                                  .logits = logits};
    const tally counted = tally_of(&rank->test_set, logits);
    json_t *document = NULL;
    status st = eval_document_make(&subject, &counted, &document);
    if (st == STATUS_OK)
        st = eval_document_save(document, t->folder.path);
    if (st != STATUS_OK)
        LOG_W("%s is not written: %s", RUN_FILE_EVAL, status_text());
    json_decref(document);
    return STATUS_OK;
}

/* The page of what the run's folder holds; a run without it is still a run. */
static void write_report(training *t)
{
    char path[FILE_PATH_BYTES];
    const char *folder = t->folder.path;
    if (t->folder.is_dry)
        return;
    metrics_close(t->metrics);
    t->metrics = t->trainer.metrics = NULL;
    if (file_join(folder, RUN_FILE_REPORT, path) != STATUS_OK ||
        run_page_write(path, &folder, 1) != STATUS_OK)
        LOG_W("no report is written: %s", status_text());
    else
        progress_line(&t->progress, "report: %s", path);
}

static void say_how_to_continue(char *path)
{
    char *words[] = {"mnist_ddp", "--run-dir", path, "--resume", NULL};
    char *line = shell_words_line(words);
    if (line != NULL)
        LOG_W("to continue: %s", line);
    free(line);
}

static void say_stopped(training *t)
{
    const position *at = &t->trainer.at;
    if (t->rank.place.rank != 0)
        return;
    int number = rank_signals_asked(&t->signals);
    char place[PROGRESS_PLACE_BYTES];
    progress_name_place(at->epoch, at->step_in_epoch, place);
    LOG_W("stopped after %s: %s%s asked for it", place,
          number != 0 ? "SIG" : "a signal to another rank",
          number != 0 ? sigabbrev_np(number) : "");
    if (!run_folder_takes_checkpoints(t->rank.opts))
        LOG_W("nothing was saved, as %s says",
              t->rank.opts->dry_run ? "--dry-run" : "--no-save-model");
    else if (check_saved(t))
        say_how_to_continue(t->folder.path);
    write_report(t);
}

/* "nan", "inf"; a loss that is finite here is not on another rank. */
static const char *name_of(double loss)
{
    return isnan(loss) ? "nan" : isinf(loss) ? "inf" : "not finite";
}

/* Every rank leaves an error file; rank 0 speaks for all. */
static void say_diverged(training *t)
{
    rank_context *rank = &t->rank;
    const trainer *at = &t->trainer;
    int64_t step = at->diverged_step, epoch = at->at.epoch + (at->at.step_in_epoch > 0);
    const result *r = &t->result;
    double loss = !isfinite(r->last_loss)         ? r->last_loss
                  : !isfinite(r->validation.loss) ? r->validation.loss
                                                  : r->test.loss;
    const char *when = rank->dev->ops->accelerator != NULL ? "by" : "after";
    status st =
        FAIL(STATUS_INVALID,
             "%s is %s %s step %lld (epoch %lld; lr %g, %s): training ends, as no step after it "
             "learns anything; give a smaller --lr, a --warmup-steps, or --clip-grad-norm",
             at->not_finite, name_of(loss), when, (long long)step, (long long)epoch,
             schedule_lr(&rank->schedule, step > 0 ? step - 1 : 0),
             optimizer_kind_name(rank->settings.optimizer.kind));
    failure_write_error_file(st, rank->place.rank, EXIT_CODE_DIVERGED);
    if (rank->place.rank != 0)
        return;
    LOG_E("%s", status_text());
    if (t->folder.saved_step > 0)
        LOG_W("the last good checkpoint, of step %lld, is kept: %s/model.safetensors",
              (long long)t->folder.saved_step, t->folder.path);
    else
        LOG_W("no checkpoint was written before it");
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
    if (ranks > 0)
        progress_line(&t->progress, "trace: %s (%d of %d ranks)", rank->opts->trace, ranks,
                      rank->place.world_size);
}

static status leave(training *t, trace_ending ending)
{
    write_trace(t, ending);
    return rank_context_leave(&t->rank);
}

static status run(training *t, int *exit_code)
{
    const position *at = &t->trainer.at;
    *exit_code = EXIT_CODE_USAGE;
    TRY(read_settings(t));
    *exit_code = EXIT_CODE_CHECKPOINT;
    TRY(start_run(t));
    *exit_code = EXIT_CODE_INTERNAL;
    TRY(write_config(t));
    open_metrics(t);
    if (t->rank.place.rank == 0)
        progress_header(&t->progress, t->folder.path, at->epoch, at->step_in_epoch);
    if (t->rank.place.rank == 0 && t->rank.opts->init != NULL && at->step == 0)
        progress_line(&t->progress, "starting from the weights in %s", t->rank.opts->init);
    if (t->rank.opts->dry_run)
        progress_line(&t->progress, "dry run: one step and one test, nothing is saved");
    trace_end(t->rank.trace.lane); /* of the setup */
    TRY(trainer_run(&t->trainer));
    progress_close_bar(&t->progress);
    bool diverged = t->rank.stop.diverged;
    if (t->rank.stop.agreed && !diverged) {
        say_stopped(t);
        return leave(t, TRACE_STOPPED);
    }
    if (diverged)
        say_diverged(t);
    TRY(result_finish(&t->result, &t->rank));
    TRY(write_eval(t));
    if (t->rank.place.rank == 0) {
        TRY(print_results(t));
        write_report(t);
    }
    return leave(t, diverged ? TRACE_STOPPED : TRACE_DONE);
}

/* Says more of a failure than its message, while the rank is still open. */
static status explain(training *t, status st)
{
    status_kept why;
    st = strategy_explain(t->rank.strategy, st);
    st = failure_explain(&t->rank, st);
    status_keep(&why);
    (void)step_log_flush(&t->trainer.log, &t->progress);
    write_trace(t, TRACE_FAILED);
    status_restore(&why);
    return st;
}

static status run_or_explain(training *t, int *exit_code)
{
    rank_signals_set_rank(&t->signals, &t->rank);
    status st = run(t, exit_code);
    if (st != STATUS_OK)
        st = explain(t, st);
    rank_signals_set_rank(&t->signals, NULL);
    return st;
}

static status open_and_run(training *t, const options *opts, const rendezvous_place *place,
                           int *exit_code)
{
    TRY(rank_signals_start(&t->signals));
    status st = rank_context_open(opts, place, failure_end_stuck, &t->rank, exit_code);
    if (st != STATUS_OK)
        return failure_explain(&t->rank, st);
    progress_open(&t->rank, &t->signals, t->trainer.started_ns, &t->progress);
    TRY(trainer_open(&t->rank, &t->trainer));
    return run_or_explain(t, exit_code);
}

static void close_all(training *t)
{
    progress_close_bar(&t->progress);
    trainer_close(&t->trainer);
    metrics_close(t->metrics);
    rank_context_close(&t->rank);
    rank_signals_stop(&t->signals);
    run_folder_close(&t->folder);
    result_close(&t->result);
}

int train_command(const options *opts, const rendezvous_place *place, int64_t started_ns)
{
    training t = {.folder.lock_fd = -1};
    int exit_code = EXIT_CODE_INTERNAL;
    t.trainer = (trainer){.signals = &t.signals,
                          .folder = &t.folder,
                          .progress = &t.progress,
                          .result = &t.result,
                          .started_ns = started_ns};
    run_config_date(t.result.date);
    status st = open_and_run(&t, opts, place, &exit_code);
    bool stopped = t.rank.stop.agreed, diverged = t.rank.stop.diverged;
    close_all(&t);
    if (st != STATUS_OK) {
        exit_code = t.refused ? EXIT_CODE_PEER : exit_code_failed(st, exit_code);
        failure_write_error_file(st, place->rank, exit_code);
        return exit_code;
    }
    if (diverged)
        return EXIT_CODE_DIVERGED;
    if (t.output_failed)
        return EXIT_CODE_CHECKPOINT;
    return stopped ? EXIT_CODE_PREEMPTED : EXIT_SUCCESS;
}
