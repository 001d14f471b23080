/* mnist_ddp bench scaling: measures, fits, predicts what was held out, projects. */
#include "app/bench/bench_document.h"
#include "app/bench/bench_plot.h"
#include "app/bench/bench_report.h"
#include "app/bench/benchmarks.h"
#include "app/bench/scaling_projection.h"
#include "app/bench/scaling_report.h"
#include "app/exit_codes.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/team.h"

#include <stdio.h>
#include <stdlib.h>

enum { CHILD_TIMEOUT_MS = 900000 };

/* What stays open from start to end. */
typedef struct study {
    const options *opts;
    scaling_plan plan;
    bench_child place;
    scaling_measurements measured;
    bool fitted;
    json_t *document;
} study;

/* What else runs here is in every figure. */
static void say_if_busy(study *s)
{
    double load = 0;
    if (getloadavg(&load, 1) != 1 || load < 0.5 * team_cores())
        return;
    LOG_W("other programs are running: load average %.1f on %d cores", load, team_cores());
    bench_document_say(s->document, BENCH_NOTES,
                       "other programs were running (load average %.1f on %d cores before the "
                       "start): every figure has their share in it",
                       load, team_cores());
}

static void say_start(study *s)
{
    say_if_busy(s);
    if (s->plan.no_modes)
        bench_document_say(s->document, BENCH_NOTES,
                           "dp and ps: left out, this program has no --mode");
    if (!bench_plot_is_possible())
        bench_document_say(s->document, BENCH_NOTES,
                           "no plots: gnuplot is not installed (Debian: gnuplot-nox)");
    bench_document_say(s->document, BENCH_LIMITS,
                       "Above %d ranks, ranks share cores: the model counts that as a cost of its "
                       "own, and what it says of the machine's own sizes is no projection.",
                       s->plan.cores);
}

/* Without a fit, as after an early stop, what was measured is still told. */
static status fit_and_tell(study *s)
{
    cost_fit fit;
    cost_sample *samples = NULL;
    TRY(scaling_samples(&s->measured, &samples));
    s->fitted = cost_fit_make(samples, s->measured.n, s->plan.cores, &fit) == STATUS_OK;
    free(samples);
    if (!s->fitted) {
        LOG_W("no fit: %s", status_message());
        bench_document_say(s->document, BENCH_NOTES, "no fit: %s", status_message());
    }
    TRY(scaling_report(s->opts, &s->plan, s->fitted ? &fit : NULL, &s->measured, s->document));
    if (s->fitted)
        scaling_project(s->opts, &s->plan, &fit, &s->measured, s->document);
    return STATUS_OK;
}

static status print(const study *s)
{
    if (!s->opts->json) {
        bench_document_print(s->document, stdout);
        printf("\nwritten: %s/scaling.json and report.html\n", s->opts->out);
        return STATUS_OK;
    }
    char *line = NULL;
    TRY(json_text_print(s->document, JSON_COMPACT | JSON_REAL_PRECISION(10), &line));
    puts(line);
    free(line);
    return STATUS_OK;
}

static status run(study *s, int argc, char **argv, int *exit_code)
{
    *exit_code = EXIT_CODE_USAGE;
    TRY(scaling_plan_make(s->opts, &s->plan));
    *exit_code = EXIT_CODE_CHECKPOINT;
    TRY(file_make_folders(s->opts->out));
    *exit_code = EXIT_CODE_INTERNAL;
    s->document =
        bench_document_create("scaling", "What scaling costs: measured and projected", argc, argv);
    TRY(bench_child_open(CHILD_TIMEOUT_MS, &s->place));
    say_start(s);
    TRY(scaling_measure(s->opts, &s->plan, &s->place, s->document, &s->measured));
    if (s->measured.stopped)
        bench_document_say(s->document, BENCH_NOTES, "stopped: this is what was measured so far");
    TRY(fit_and_tell(s));
    *exit_code = EXIT_CODE_CHECKPOINT;
    TRY(bench_document_write(s->document, s->opts->out));
    TRY(bench_report_write(s->opts->out));
    TRY(print(s));
    *exit_code = s->measured.stopped ? 128 + s->place.stop_signal
                 : s->fitted         ? EXIT_SUCCESS
                                     : EXIT_CODE_INTERNAL;
    return STATUS_OK;
}

int scaling_command(const options *opts, int argc, char **argv)
{
    study s = {.opts = opts};
    int exit_code = EXIT_CODE_INTERNAL;
    status st = run(&s, argc, argv, &exit_code);
    if (st != STATUS_OK)
        exit_code = exit_code_failed(st, exit_code);
    bench_child_close(&s.place);
    scaling_measurements_free(&s.measured);
    json_decref(s.document);
    return exit_code;
}
