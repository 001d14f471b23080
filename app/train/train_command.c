/* The train command: from the job's start to its exit code. */
#include "app/commands.h"
#include "app/exit_codes.h"
#include "app/modes/replicas.h"
#include "app/train/failure.h"
#include "app/train/memory_use.h"
#include "app/train/train.h"
#include "base/file_draft.h"
#include "base/log.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static status read_settings(training *t)
{
    const job *j = &t->j;
    TRY(save_every_parse(j->opts->save_every, &t->every));
    TRY(inject_parse(j->opts->inject, &t->fault));
    return inject_aim(&t->fault, j->place.rank, j->place.world_size, j->place.restart_count);
}

/* Rank 0 opens the run's folder and, resuming, its checkpoint; all ranks then stand where it
 * stands. */
static status start_run(training *t)
{
    job *j = &t->j;
    bool resumes = run_folder_resume_mode(j) != RESUME_NEVER;
    if (j->place.rank == 0) {
        TRY(run_folder_open(j, t->run_dir, &t->run_dir_lock));
        if (resumes)
            TRY(run_folder_resume(t->run_dir, j, &t->at));
        t->saved_step = t->at.step;
    }
    if (!resumes)
        return STATUS_OK;
    int64_t at[] = {t->at.epoch, t->at.step_in_epoch, t->at.step, t->at.epoch_samples};
    TRY(process_group_broadcast(j->group, at, 4, DTYPE_I64, 0, NULL));
    TRY(process_group_broadcast(j->group, &t->at.epoch_loss, 1, DTYPE_F64, 0, NULL));
    t->at = (progress){at[0], at[1], at[2], t->at.epoch_loss, at[3]};
    return job_broadcast_state(j);
}

/* Who moved most, and how much memory each device held. */
static status compare_replicas(training *t)
{
    run_results *results = &t->results;
    for (int i = 0; i < results->n_peaks; i++) {
        rank_bytes moved = job_bytes(&t->j, i);
        results->peaks[i] = replicas_peak_bytes(t->j.others, i);
        if (moved.sent > results->busiest.sent)
            results->busiest.sent = moved.sent;
        if (moved.received > results->busiest.received)
            results->busiest.received = moved.received;
    }
    return STATUS_OK;
}

static status compare_devices(training *t)
{
    job *j = &t->j;
    run_results *results = &t->results;
    results->busiest = results->bytes;
    results->n_peaks = j->others != NULL ? j->replicas : j->place.world_size;
    TRY(memory_alloc(sizeof *results->peaks * (size_t)results->n_peaks, (void **)&results->peaks));
    if (j->others != NULL)
        return compare_replicas(t);
    int64_t most[] = {results->bytes.sent, results->bytes.received};
    TRY(process_group_all_reduce(j->group, most, 2, DTYPE_I64, REDUCE_MAX, NULL));
    results->busiest = (rank_bytes){most[0], most[1]};
    results->peaks[j->place.rank] = j->dev->memory_peak;
    return process_group_all_reduce(j->group, results->peaks, (size_t)results->n_peaks, DTYPE_I64,
                                    REDUCE_SUM, NULL);
}

/* What an accelerator does inside a graph, or hides behind its arithmetic, is not known. */
static void note_what_is_known(training *t)
{
    const job *j = &t->j;
    run_results *results = &t->results;
    bool on_host = j->dev->stream == NULL, alone = j->place.world_size == 1;
    bool none_to_wait_for = alone && j->others == NULL;
    results->knows_exposed = !results->graph || none_to_wait_for;
    results->knows_waiting = none_to_wait_for || (on_host && alone) || j->timeline.late.known;
    results->comm_ns = timeline_exposed_ns(&j->timeline) + j->timeline.ns[MOMENT_WAITING];
    if (on_host && j->reducer != NULL)
        results->comm_ns = ddp_elapsed(j->reducer).comm_ns;
    else if (!on_host && !none_to_wait_for && (results->graph || j->reducer != NULL))
        results->comm_ns = -1;
}

static status finish(training *t)
{
    job *j = &t->j;
    run_results *results = &t->results;
    results->graph = t->graphs.enabled;
    note_what_is_known(t);
    TRY(compare_devices(t));
    TRY(memory_use(&results->rss_mib, &results->private_mib));
    return process_group_all_reduce(j->group, &results->private_mib, 1, DTYPE_I64, REDUCE_MAX,
                                    NULL);
}

/* Whether the run's folder holds what the run has come to. Says so where it does not, and where
 * checkpoints are missing that later ones have made up for. */
static bool check_saved(training *t)
{
    if (run_folder_check_saved(t->run_dir, &t->at) != STATUS_OK) {
        LOG_E("the end of the run is not on disk: %s", status_message());
        t->output_failed = true;
        return false;
    }
    if (t->results.failed_checkpoints > 0)
        LOG_W("%d of this run's checkpoints could not be written; the last one is there, whole",
              t->results.failed_checkpoints);
    return true;
}

/* The JSON line, on stdout where it was asked for and always in the run's folder. */
static status print_results(training *t)
{
    char *line = NULL, path[FILE_PATH_BYTES];
    TRY(report_json(&t->j, &t->results, &line));
    const file_part parts[] = {{line, strlen(line)}, {"\n", 1}};
    status st = file_join(t->run_dir, RUN_FOLDER_RESULT, path);
    if (st == STATUS_OK)
        st = file_replace(path, parts, 2);
    if (t->j.opts->json)
        printf("%s\n", line);
    free(line);
    if (st != STATUS_OK) {
        LOG_E("results not written: %s", status_message());
        t->output_failed = true;
    }
    if (t->j.opts->save_model && check_saved(t))
        report_line(&t->rep, "saved: %s/model.safetensors", t->run_dir);
    return STATUS_OK;
}

static void say_stopped(training *t)
{
    if (t->j.place.rank != 0)
        return;
    int number = rank_signals_asked(&t->signals);
    LOG_W("stopped behind epoch %lld, step %lld: %s%s asked for it", (long long)t->at.epoch,
          (long long)t->at.step_in_epoch, number != 0 ? "SIG" : "a signal to another rank",
          number != 0 ? sigabbrev_np(number) : "");
    if (!t->j.opts->save_model)
        LOG_W("nothing was saved, as --no-save-model says");
    else if (check_saved(t))
        LOG_W("to continue: --run-dir %s --resume=auto", t->run_dir);
}

/* A trace that cannot be written does not undo what the run has done, but shows in its exit code.
 */
static void write_trace(training *t, trace_ending ending)
{
    int ranks = 0;
    if (run_trace_write(&t->j, ending, &ranks) != STATUS_OK) {
        LOG_E("trace not written: %s", status_message());
        t->output_failed = true;
    }
    if (ranks > 0 && t->j.place.rank > 0)
        LOG_W("rank 0 is gone: rank %d has written the trace, %s", t->j.place.rank,
              t->j.opts->trace);
    if (ranks > 0)
        report_line(&t->rep, "trace: %s (%d of %d ranks)", t->j.opts->trace, ranks,
                    t->j.place.world_size);
}

static status leave(training *t, trace_ending ending)
{
    write_trace(t, ending);
    return job_leave(&t->j);
}

static status run(training *t, int *exit_code)
{
    *exit_code = EXIT_CODE_USAGE;
    TRY(read_settings(t));
    *exit_code = EXIT_CODE_CHECKPOINT;
    TRY(start_run(t));
    *exit_code = EXIT_CODE_INTERNAL;
    if (t->j.place.rank == 0)
        report_header(&t->rep, t->run_dir, t->at.epoch, t->at.step_in_epoch);
    trace_end(t->j.trace.lane); /* of the setup */
    TRY(train_epochs(t));
    if (t->j.stop.agreed) {
        say_stopped(t);
        return leave(t, TRACE_STOPPED);
    }
    TRY(finish(t));
    if (t->j.place.rank == 0)
        TRY(print_results(t));
    return leave(t, TRACE_DONE);
}

static status explain(training *t, status st)
{
    status_kept why;
    if (t->j.others != NULL)
        st = replicas_explain(t->j.others, st);
    st = failure_explain(&t->j, st);
    status_keep(&why);
    (void)step_log_flush(&t->log, &t->rep);
    write_trace(t, TRACE_FAILED);
    status_restore(&why);
    return st;
}

/* Trains, and says more of a failure than its message while the job is still open. */
static status run_or_explain(training *t, int *exit_code)
{
    rank_signals_set_job(&t->signals, &t->j);
    status st = run(t, exit_code);
    if (st != STATUS_OK)
        st = explain(t, st);
    rank_signals_set_job(&t->signals, NULL);
    return st;
}

int train_command(const options *opts, const rendezvous_place *place, int64_t started_ns)
{
    training t = {.started_ns = started_ns, .run_dir_lock = -1};
    int exit_code = EXIT_CODE_INTERNAL;
    status st = rank_signals_start(&t.signals);
    if (st == STATUS_OK)
        st = job_open(opts, place, &t.j, &exit_code);
    if (st == STATUS_OK) {
        t.rep = report_open(&t.j);
        t.graphs = (step_graphs){
            .timeline = &t.j.timeline,
            .enabled = opts->cuda_graph && t.j.dev->ops->accelerator != NULL &&
                       t.j.others == NULL && /* their threads enqueue by themselves */
                       process_group_can_be_captured(t.j.group),
        };
        if (t.j.dev->stream != NULL && !t.graphs.enabled)
            st = timeline_time_stream(&t.j.timeline);
        if (st == STATUS_OK)
            st = step_log_open(t.j.dev, &t.log);
        if (st == STATUS_OK)
            st = run_or_explain(&t, &exit_code);
    }
    bool stopped = t.j.stop.agreed;
    step_graphs_close(&t.graphs);
    step_log_close(&t.log);
    job_close(&t.j);
    rank_signals_stop(&t.signals);
    if (t.run_dir_lock >= 0)
        close(t.run_dir_lock);
    free(t.results.train_s);
    free(t.results.peaks);
    if (st != STATUS_OK) {
        exit_code = exit_code_failed(st, exit_code);
        failure_write_error_file(st, place->rank, exit_code);
        return exit_code;
    }
    if (t.output_failed)
        return EXIT_CODE_CHECKPOINT;
    return stopped ? EXIT_CODE_PREEMPTED : EXIT_SUCCESS;
}
