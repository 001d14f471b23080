/* mnist_ddp bench dp-vs-ddp: DataParallel beside DistributedDataParallel. */
#include "app/bench/dp_vs_ddp.h"

#include "app/bench/bench.h"
#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/report/report.h"
#include "base/log.h"

#include <math.h>
#include <stdio.h>

enum { CHILD_TIMEOUT_MS = 3600 * 1000 };

/* Below it a run has not learned, and its speed means nothing. */
static const double PEER_ACCURACY = 0.85;

/* A run of PyTorch that does not learn is not measured against. */
static status check_peer(const bench_sample *s)
{
    if (!isfinite(s->last_loss) || !(s->test_acc >= PEER_ACCURACY))
        return FAIL(STATUS_PEER, "does not count: loss %g, accuracy %.1f %% (at least %.0f %%)",
                    s->last_loss, 100 * s->test_acc, 100 * PEER_ACCURACY);
    return STATUS_OK;
}

/* What is measured, and where figures go. */
typedef struct target {
    const bench_commands *commands;
    bench_rows *rows;
} target;

static void make_command(void *ctx, int i, char name[BENCH_CASE_BYTES], bench_words *out)
{
    target *t = ctx;
    bench_row *row = &t->rows->list[i];
    bench_case_name(row->c, name);
    bench_commands_make(t->commands, row->c, out);
    bench_words_line(out, row->command, sizeof row->command);
}

static status take_sample(void *ctx, int i, int repeat, const json_t *line,
                          char figure[BENCH_FIGURE_BYTES])
{
    target *t = ctx;
    bench_row *row = &t->rows->list[i];
    bench_sample *sample = &row->samples[repeat];
    TRY(bench_sample_read(line, (int)t->commands->opts->warmup, row->c->global_batch, sample));
    if (row->c->torch)
        TRY(check_peer(sample));
    row->counts[repeat] = true;
    snprintf(figure, BENCH_FIGURE_BYTES, "%.0f images/s", sample->images_per_s);
    return STATUS_OK;
}

static void note_failure(void *ctx, int i, const char *name)
{
    (void)name;
    bench_row *row = &((target *)ctx)->rows->list[i];
    snprintf(row->failure, sizeof row->failure, "%s", status_text());
}

status dp_vs_ddp_measure(const bench_commands *commands, bench_child *place, bench_rows *rows)
{
    target t = {commands, rows};
    return bench_measure(&(bench_measurement){rows->cases->count, rows->repeats, &t, make_command,
                                              take_sample, note_failure, !commands->opts->quiet},
                         place);
}

/* Everything that the command holds. */
typedef struct comparison {
    const options *opts;
    bench_cases cases;
    bench_rows rows;
    bench_child place;
    bench_commands commands;
    json_t *notes, *document;
    char folder[FILE_PATH_BYTES];
} comparison;

static status prepare(comparison *c)
{
    int gpus = 0;
    TRY(device_list_count(c->opts, &gpus));
    TRY(bench_cases_make(c->opts, gpus > 0, &c->cases, c->notes));
    TRY(bench_rows_create(&c->cases, (int)c->opts->repeats, &c->rows));
    TRY(bench_child_open(CHILD_TIMEOUT_MS, &c->place));
    TRY(bench_commands_init(c->opts, gpus > 0, c->place.folder, &c->commands));
    TRY(bench_commands_find(&c->commands));
    TRY(bench_folder_make(c->opts, c->folder)); /* before the hours of measuring */
    c->commands.evaluates = true;
    c->rows.threads = c->commands.threads;
    c->rows.is_cuda = gpus > 0;
    return STATUS_OK;
}

/* If no row has samples, the first failure is what is wrong. */
static status check_measured(comparison *c)
{
    for (int i = 0; i < c->cases.count; i++)
        if (bench_row_samples(&c->rows, i) > 0)
            return STATUS_OK;
    if (bench_child_stopped(&c->place))
        return FAIL(STATUS_TIMEOUT, "stopped before anything was measured");
    return FAIL(STATUS_PEER, "nothing was measured: %s\n  it was: %s", c->rows.list[0].failure,
                c->rows.list[0].command);
}

static status finish(comparison *c)
{
    bool stopped = bench_child_stopped(&c->place);
    TRY(check_measured(c));
    if (stopped)
        report_say(c->document, REPORT_NOTES,
                   "stopped by a signal: the figures are of the runs until then");
    json_object_set_new(c->document, "interrupted", json_boolean(stopped));
    dp_vs_ddp_document(&c->commands, &c->rows, c->notes, c->document);
    dp_vs_ddp_plots(&c->rows, c->folder, c->document);
    TRY(bench_leave(c->opts, &c->place, c->folder, c->document));
    if (c->opts->json && !c->opts->quiet)
        report_print(c->document, stderr);
    return STATUS_OK;
}

int dp_vs_ddp_command(const options *opts, int argc, char **argv)
{
    comparison c = {.opts = opts, .notes = json_array()};
    c.document = bench_document(opts, "DataParallel beside DistributedDataParallel", argc, argv);
    int code = EXIT_CODE_USAGE;
    status st = prepare(&c);
    if (st == STATUS_OK) {
        bench_say_if_busy(c.document);
        LOG_I("%d cases x %d runs", c.cases.count, c.rows.repeats);
        code = EXIT_CODE_INTERNAL;
        st = dp_vs_ddp_measure(&c.commands, &c.place, &c.rows);
    }
    if (st == STATUS_OK)
        st = finish(&c);
    code = st != STATUS_OK ? exit_code_failed(st, code) : EXIT_SUCCESS;
    if (bench_child_stopped(&c.place)) /* also while plots were drawn */
        code = 128 + c.place.signals.first;
    bench_child_close(&c.place);
    bench_rows_free(&c.rows);
    bench_cases_free(&c.cases);
    json_decref(c.notes);
    json_decref(c.document);
    return code;
}
