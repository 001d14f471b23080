/* mnist_ddp bench scaling: measures, fits, predicts what was held out, projects. */
#include "app/bench/scaling.h"

#include "app/bench/bench.h"
#include "app/common/exit_codes.h"
#include "app/report/report.h"
#include "base/log.h"

#include <stdlib.h>

enum { CHILD_TIMEOUT_MS = 900000 };

/* What stays open from start to end. */
typedef struct study {
    const options *opts;
    scaling_plan plan;
    bench_child place;
    scaling_measurements measured;
    json_t *document;
    char folder[FILE_PATH_BYTES];
} study;

/* Without a fit, as after an early stop, what was measured is still told. */
static status fit_and_tell(study *s, bool *fitted)
{
    cost_fit fit;
    cost_sample *samples = NULL;
    TRY(scaling_samples(&s->measured, &samples));
    *fitted = cost_fit_make(samples, s->measured.n, s->plan.cores, &fit) == STATUS_OK;
    if (!*fitted) {
        LOG_W("no fit: %s", status_text());
        report_say(s->document, REPORT_NOTES, "no fit: %s", status_text());
    }
    scaling_view view = {&s->plan, *fitted ? &fit : NULL, &s->measured, s->opts->overlap};
    scaling_report(&view, samples, s->folder, s->document);
    if (*fitted)
        scaling_project(&view, s->folder, s->document);
    free(samples);
    return STATUS_OK;
}

static status run(study *s, int *exit_code)
{
    bool fitted = false;
    *exit_code = EXIT_CODE_USAGE;
    TRY(scaling_plan_make(s->opts, &s->plan));
    *exit_code = EXIT_CODE_CHECKPOINT;
    TRY(bench_folder_make(s->opts, s->folder));
    *exit_code = EXIT_CODE_INTERNAL;
    TRY(bench_child_open(CHILD_TIMEOUT_MS, &s->place));
    bench_say_if_busy(s->document);
    report_say(s->document, REPORT_LIMITS,
               "Above %d ranks, ranks share cores: the model counts that as a cost of its own, and "
               "what it says of the machine's own sizes is no projection.",
               s->plan.cores);
    TRY(scaling_measure(s->opts, &s->plan, &s->place, s->document, &s->measured));
    bool stopped = bench_child_stopped(&s->place);
    if (stopped)
        report_say(s->document, REPORT_NOTES, "stopped: this is what was measured so far");
    TRY(fit_and_tell(s, &fitted));
    *exit_code = EXIT_CODE_CHECKPOINT;
    TRY(bench_leave(s->opts, &s->place, s->folder, s->document));
    stopped = bench_child_stopped(&s->place); /* also while plots were drawn */
    *exit_code = stopped  ? 128 + s->place.signals.first
                 : fitted ? EXIT_SUCCESS
                          : EXIT_CODE_INTERNAL;
    return STATUS_OK;
}

int scaling_command(const options *opts, int argc, char **argv)
{
    study s = {.opts = opts};
    int exit_code = EXIT_CODE_INTERNAL;
    s.document = bench_document(opts, "What scaling costs: measured and projected", argc, argv);
    status st = run(&s, &exit_code);
    if (st != STATUS_OK)
        exit_code = exit_code_failed(st, exit_code);
    bench_child_close(&s.place);
    scaling_measurements_free(&s.measured);
    json_decref(s.document);
    return exit_code;
}
