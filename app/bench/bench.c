/* mnist_ddp bench: which of the benchmarks. */
#include "app/bench/bench.h"

#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/common/run_files.h"
#include "app/options/options_table.h"
#include "app/report/report.h"
#include "base/log.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int bench_run(const options *opts, int argc, char **argv);

static const struct {
    const char *name;
    bench_run *run;
} BENCHMARKS[] = {
    {"dp-vs-ddp", dp_vs_ddp_command},
    {"modes", dp_vs_ddp_command},
    {"scaling", scaling_command}, /* those of operations run as ranks: main starts them */
};
enum { COUNT = sizeof BENCHMARKS / sizeof BENCHMARKS[0], MOST_BENCHMARKS = 32 };

/* The benchmark, or the first of a kind, that alone has a flag; NULL: several do. */
static const command_row *owner_of(const option_row *row)
{
    const command_row *owner = NULL;
    for (int i = 0; i < benchmark_table_count; i++)
        if (row->commands & benchmark_table[i].flags) {
            if (owner != NULL && owner->flags != benchmark_table[i].flags)
                return NULL;
            if (owner == NULL)
                owner = &benchmark_table[i];
        }
    return owner;
}

status bench_check_flags(const options *opts)
{
    const command_row *mine = command_table_row(COMMAND_BENCH, opts->benchmark);
    for (size_t i = 0; i < options_table_count; i++) {
        const option_row *row = &options_table[i];
        if (opts->given[i] != SOURCE_COMMAND_LINE || (row->commands & mine->flags) != 0)
            continue;
        const command_row *owner = owner_of(row);
        if (owner == NULL)
            return FAIL(STATUS_INVALID, "--%s: not a flag of 'bench %s'", row->name, mine->name);
        return FAIL(STATUS_INVALID, "--%s: a flag of 'bench %s', not of '%s'%s", row->name,
                    owner->name, mine->name,
                    row->group == GROUP_LAUNCHER ? ", which takes --world-sizes" : "");
    }
    return STATUS_OK;
}

status bench_folder_make(const options *opts, char *path)
{
    char what[64];
    if (opts->out == NULL) {
        snprintf(what, sizeof what, "bench-%s", opts->benchmark);
        return runs_folder_make(what, path);
    }
    if (strlen(opts->out) + 64 >= FILE_PATH_BYTES)
        return FAIL(STATUS_INVALID, "--out is too long");
    strcpy(path, opts->out);
    return file_make_folders(path);
}

void bench_say_if_busy(json_t *document)
{
    double load = 0;
    if (getloadavg(&load, 1) != 1 || load < 0.5 * cores_count())
        return;
    LOG_W("other programs are running: load average %.1f on %d cores", load, cores_count());
    report_say(document, REPORT_NOTES,
               "other programs were running (load average %.1f on %d cores before the start): "
               "every figure has their share in it",
               load, cores_count());
}

status bench_page_write(const char *folder)
{
    char names[MOST_BENCHMARKS][64];
    const char *documents[MOST_BENCHMARKS + 1] = {NULL};
    for (int i = 0; i < benchmark_table_count && i < MOST_BENCHMARKS; i++) {
        snprintf(names[i], sizeof names[i], "%s.json", benchmark_table[i].name);
        documents[i] = names[i];
    }
    return documents_page_write(folder, "mnist_ddp: benchmarks", documents);
}

/* From here on a signal ends this process again: it may wait for whoever reads stdout. */
static status leave(const bench_plan *plan, bench_study *s)
{
    char name[64];
    snprintf(name, sizeof name, "%s.json", s->opts->benchmark);
    TRY(report_write(s->document, s->folder, name));
    TRY(bench_page_write(s->folder));
    bench_child_release_signals(&s->place);
    if (s->opts->json) {
        TRY(json_value_print(json_incref(s->document)));
        if (plan->says_beside && !s->opts->quiet)
            report_print(s->document, stderr);
        return STATUS_OK;
    }
    report_print(s->document, stdout);
    printf("\nfigures: %s/%s; page: %s/report.html\n", s->folder, name, s->folder);
    return STATUS_OK;
}

static status run_study(const bench_plan *plan, void *self, bench_study *s, int *exit_code)
{
    *exit_code = EXIT_CODE_USAGE;
    TRY(plan->prepare(s, self));
    *exit_code = EXIT_CODE_CHECKPOINT;
    if (s->folder[0] == '\0')
        TRY(bench_folder_make(s->opts, s->folder));
    *exit_code = EXIT_CODE_INTERNAL;
    TRY(bench_child_open(plan->timeout_ms, &s->place));
    bench_say_if_busy(s->document);
    TRY(plan->measure(s, self));
    *exit_code = plan->unwritten;
    return leave(plan, s);
}

int bench_study_run(const bench_plan *plan, void *self, const options *opts, int argc, char **argv)
{
    bench_study s = {.opts = opts};
    int exit_code;
    s.document =
        report_create(&(report_head){"benchmark", opts->benchmark, plan->title, argc, argv});
    status st = run_study(plan, self, &s, &exit_code);
    exit_code = st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, exit_code);
    if (s.place.folder[0] != '\0' && bench_child_stopped(&s.place))
        exit_code = 128 + s.place.signals.first;
    bench_child_close(&s.place);
    json_decref(s.document);
    return exit_code;
}

static status none_was_named(void)
{
    char names[256] = "";
    for (int i = 0; i < benchmark_table_count; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i > 0 ? ", " : "",
                 benchmark_table[i].name);
    return FAIL(STATUS_INVALID, "bench: which benchmark? There are %s", names);
}

int bench_command(const options *opts, int argc, char **argv)
{
    if (opts->quiet)
        log_set_level(LOG_WARNING);
    status st = opts->benchmark != NULL ? bench_check_flags(opts) : none_was_named();
    for (int i = 0; i < COUNT && st == STATUS_OK; i++)
        if (strcmp(opts->benchmark, BENCHMARKS[i].name) == 0)
            return BENCHMARKS[i].run(opts, argc, argv);
    return exit_code_failed(st, EXIT_CODE_USAGE);
}
