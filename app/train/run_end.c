#include "app/train/run_end.h"

#include "app/common/exit_codes.h"
#include "app/common/run_files.h"
#include "app/report/run_page.h"
#include "app/report/trace_picture.h"
#include "app/train/eval_document.h"
#include "app/train/failure.h"
#include "base/log.h"
#include "base/text.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        char what[128], path[FILE_PATH_BYTES + 64];
        snprintf(what, sizeof what, "best: %.2f%% of the %s images right, in epoch %lld, step %lld",
                 100.0 * (double)best->test.correct / (double)best->test.images,
                 run_tests_validate(&t->trainer.tests) ? "validation" : "test",
                 (long long)best->epoch, (long long)best->step);
        snprintf(path, sizeof path, "%s/%s/%s", t->folder.path, CHECKPOINT_FOLDER, CHECKPOINT_BEST);
        progress_path(&t->progress, what, path);
    }
}

/* All that --quiet leaves of the log, as eval prints it. */
static void print_result_line(const training *t)
{
    const evaluation *test = &t->result.test;
    char name[FILE_PATH_BYTES];
    printable_copy(PRINTABLE_LINE, t->folder.path, name, sizeof name);
    printf("%s: %s, ", t->rank.opts->dry_run ? "dry run" : name,
           model_kind_name(t->rank.settings.model));
    if (test->images > 0)
        printf("accuracy %.2f%% (%lld/%lld), loss %.4f\n", 100 * evaluation_accuracy(test),
               (long long)test->correct, (long long)test->images, test->loss);
    else
        printf("train loss %.4f\n", t->result.last_loss);
}

status run_end_print(training *t)
{
    char *line = NULL, path[FILE_PATH_BYTES];
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
    if (run_folder_takes_checkpoints(t->rank.opts) && !t->rank.stop.diverged && check_saved(t) &&
        file_join(t->folder.path, CHECKPOINT_MODEL, path) == STATUS_OK)
        progress_path(&t->progress, "saved", path);
    say_best(t);
    if (!t->rank.stop.diverged && t->result.epochs > 0)
        progress_end(&t->progress, t->result.epochs);
    return STATUS_OK;
}

status run_end_write_eval(training *t)
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

void run_end_write_report(training *t)
{
    char path[FILE_PATH_BYTES];
    const char *folder = t->folder.path;
    if (t->folder.is_dry)
        return;
    metrics_close(t->trainer.records.metrics);
    t->trainer.records.metrics = NULL;
    if (file_join(folder, RUN_FILE_REPORT, path) != STATUS_OK ||
        run_page_write(path, &folder, 1) != STATUS_OK)
        LOG_W("no report is written: %s", status_text());
    else
        progress_path(&t->progress, "report", path);
}

/* "trace.json" -> "trace.html". */
static status name_trace_page(const char *trace_path, char page[FILE_PATH_BYTES])
{
    size_t length = strlen(trace_path);
    bool is_json = length > 5 && strcmp(trace_path + length - 5, ".json") == 0;
    int n = snprintf(page, FILE_PATH_BYTES, "%.*s.html", (int)(is_json ? length - 5 : length),
                     trace_path);
    return n < FILE_PATH_BYTES ? STATUS_OK : FAIL(STATUS_INVALID, "--trace is too long");
}

/* The report is there already. */
static status draw_steps(const training *t)
{
    char path[FILE_PATH_BYTES];
    const char *folder = t->folder.path;
    TRY(file_join(folder, RUN_FILE_TRACE, path));
    TRY(trace_picture_write_steps(t->rank.opts->trace, path));
    TRY(file_join(folder, RUN_FILE_REPORT, path));
    return file_exists(path) ? run_page_write(path, &folder, 1) : STATUS_OK;
}

void run_end_draw_trace(training *t)
{
    char page[FILE_PATH_BYTES];
    status st = name_trace_page(t->rank.opts->trace, page);
    if (st == STATUS_OK)
        st = trace_picture_write_page(t->rank.opts->trace, page);
    if (st == STATUS_OK)
        progress_path(&t->progress, "as a page", page);
    if (st == STATUS_OK && t->rank.place.rank == 0 && !t->folder.is_dry)
        st = draw_steps(t);
    if (st != STATUS_OK)
        LOG_W("the trace is not drawn: %s", status_text());
}

static void say_how_to_continue(char *path)
{
    char *words[] = {"mnist_ddp", "--run-dir", path, "--resume", NULL};
    char *line = shell_words_line(words);
    if (line != NULL)
        LOG_W("to continue: %s", line);
    free(line);
}

void run_end_say_stopped(training *t)
{
    const position *at = &t->trainer.at;
    if (t->rank.place.rank != 0)
        return;
    int number = rank_signals_asked(&t->signals);
    char place[PROGRESS_PLACE_BYTES];
    progress_name_place(at->epoch, at->step_in_epoch, place);
    LOG_W("stopped after %s: %s%s asked for it", place,
          number != 0                    ? "SIG"
          : elastic_wants_pause(t->link) ? "its agent"
                                         : "a signal to another rank",
          number != 0 ? sigabbrev_np(number) : "");
    if (!run_folder_takes_checkpoints(t->rank.opts))
        LOG_W("nothing was saved, as %s says",
              t->rank.opts->dry_run ? "--dry-run" : "--no-save-model");
    else if (check_saved(t))
        say_how_to_continue(t->folder.path);
    run_end_write_report(t);
}

/* "nan", "inf"; a loss that is finite here is not on another rank. */
static const char *name_of(double loss)
{
    return isnan(loss) ? "nan" : isinf(loss) ? "inf" : "not finite";
}

void run_end_say_diverged(training *t)
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
