/* mnist_ddp bench dp-vs-ddp: DataParallel beside DistributedDataParallel. */
#include "app/bench/dp_vs_ddp.h"
#include "app/bench/bench_document.h"
#include "app/bench/bench_report.h"
#include "app/bench/benchmarks.h"
#include "app/device_list.h"
#include "app/exit_codes.h"
#include "base/json_text.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHILD_TIMEOUT_MS = 3600 * 1000 };

static const char TITLE[] = "DataParallel beside DistributedDataParallel";

/* Everything that the command holds. */
typedef struct comparison {
    const options *opts;
    bench_cases cases;
    bench_rows rows;
    bench_child place;
    bench_commands commands;
    json_t *notes, *document;
} comparison;

static status find_devices(const options *opts, bool *is_cuda)
{
    int gpus = 0;
    TRY(device_list_count(opts, &gpus));
    *is_cuda = gpus > 0;
    return STATUS_OK;
}

static status prepare(comparison *c)
{
    bool is_cuda = false;
    TRY(find_devices(c->opts, &is_cuda));
    TRY(bench_cases_make(c->opts, is_cuda, &c->cases, c->notes));
    TRY(bench_rows_create(&c->cases, (int)c->opts->repeats, &c->rows));
    TRY(file_make_folders(c->opts->out)); /* before the hours of measuring */
    TRY(bench_child_open(CHILD_TIMEOUT_MS, &c->place));
    TRY(bench_commands_init(c->opts, is_cuda, c->place.folder, &c->commands));
    c->rows.threads = c->commands.threads;
    c->rows.is_cuda = is_cuda;
    return STATUS_OK;
}

/* Rows with samples; where there are none, the first failure is what is wrong. */
static status check_measured(const comparison *c)
{
    for (int i = 0; i < c->cases.count; i++)
        if (bench_row_samples(&c->rows, i) > 0)
            return STATUS_OK;
    if (c->place.stopped)
        return FAIL(STATUS_TIMEOUT, "stopped before anything was measured");
    return FAIL(STATUS_PEER, "nothing was measured: %s\n  it was: %s", c->rows.list[0].failure,
                c->rows.list[0].command);
}

/* Plots and page are made of what the document says, so it is written first and last. */
static status finish(comparison *c)
{
    const options *o = c->opts;
    TRY(check_measured(c));
    if (c->place.stopped)
        bench_document_say(c->document, BENCH_NOTES,
                           "stopped by a signal: the figures are of the runs until then");
    json_object_set_new(c->document, "interrupted", json_boolean(c->place.stopped));
    dp_vs_ddp_document(&c->commands, &c->rows, c->notes, c->document);
    dp_vs_ddp_plots(&c->rows, o->out, c->document);
    if (!o->json || !o->quiet)
        bench_document_print(c->document, o->json ? stderr : stdout);
    TRY(bench_document_write(c->document, o->out));
    TRY(bench_report_write(o->out));
    if (!o->json)
        printf("\nfigures: %s/dp-vs-ddp.json; page: %s/report.html\n", o->out, o->out);
    return STATUS_OK;
}

static status print_json(const json_t *document)
{
    char *line = NULL;
    TRY(json_text_print(document, JSON_COMPACT | JSON_REAL_PRECISION(10), &line));
    puts(line);
    free(line);
    return STATUS_OK;
}

int dp_vs_ddp_command(const options *opts, int argc, char **argv)
{
    comparison c = {.opts = opts, .notes = json_array()};
    c.document = bench_document_create("dp-vs-ddp", TITLE, argc, argv);
    int code = EXIT_CODE_USAGE;
    status st = prepare(&c);
    if (st == STATUS_OK) {
        LOG_I("%d cases x %d runs", c.cases.count, c.rows.repeats);
        dp_vs_ddp_measure(&c.commands, &c.place, &c.rows);
        code = EXIT_CODE_INTERNAL;
        st = finish(&c);
        if (st == STATUS_OK && opts->json)
            st = print_json(c.document);
    }
    bool stopped = c.place.stopped;
    int signal = c.place.stop_signal;
    if (st != STATUS_OK)
        code = exit_code_failed(st, code);
    bench_child_close(&c.place);
    bench_rows_free(&c.rows);
    bench_cases_free(&c.cases);
    json_decref(c.notes);
    json_decref(c.document);
    return stopped ? 128 + signal : st == STATUS_OK ? EXIT_SUCCESS : code;
}
