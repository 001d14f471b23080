/* mnist_ddp bench: which of the benchmarks. */
#include "app/bench/bench.h"

#include "app/common/exit_codes.h"
#include "app/common/runs_folder.h"
#include "app/options/nearest.h"
#include "app/options/options_table.h"
#include "app/options/options_value.h"
#include "app/report/page.h"
#include "app/report/report.h"
#include "base/json_text.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(const options *opts, int argc, char **argv);
} BENCHMARKS[] = {
    {"dp-vs-ddp", dp_vs_ddp_command},
    {"scaling", scaling_command},
    {"all-reduce", NULL}, /* runs as ranks: main starts it */
};
enum { COUNT = sizeof BENCHMARKS / sizeof BENCHMARKS[0] };

static status unknown(const char *name)
{
    char list[256] = "";
    nearest search;
    nearest_init(&search, name != NULL ? name : "");
    for (int i = 0; i < COUNT; i++) {
        size_t used = strlen(list);
        nearest_offer(&search, BENCHMARKS[i].name);
        snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", BENCHMARKS[i].name);
    }
    if (name == NULL)
        return FAIL(STATUS_INVALID, "bench: which benchmark? There are %s", list);
    if (nearest_found(&search))
        return FAIL(STATUS_INVALID, "bench: '%.80s' is no benchmark; did you mean '%s'?", name,
                    search.best);
    return FAIL(STATUS_INVALID, "bench: '%.80s' is no benchmark; there are %s", name, list);
}

/* Which benchmark alone has a flag; NULL: several do. */
static const char *owner_of(const option_row *row)
{
    static const char *const comparisons[] = {"scaling", "peer", "peer-python"};
    if (row->group == GROUP_ALL_REDUCE || row->group == GROUP_LAUNCHER)
        return "all-reduce";
    for (size_t i = 0; i < sizeof comparisons / sizeof comparisons[0]; i++)
        if (row->group == GROUP_BENCH && strcmp(row->name, comparisons[i]) == 0)
            return "dp-vs-ddp";
    return row->group == GROUP_SCALING ? "scaling" : NULL;
}

/* An all-reduce trains nothing. */
static bool is_of_training(const option_row *row)
{
    return row->group == GROUP_BENCH || row->group == GROUP_TRAINING || row->group == GROUP_DATA;
}

status bench_check_flags(const options *opts)
{
    bool as_ranks = strcmp(opts->benchmark, "all-reduce") == 0;
    for (size_t i = 0; i < options_table_count; i++) {
        const option_row *row = &options_table[i];
        if (opts->given[i] != SOURCE_COMMAND_LINE)
            continue;
        const char *owner = owner_of(row);
        if (owner != NULL && strcmp(owner, opts->benchmark) != 0)
            return FAIL(STATUS_INVALID, "--%s: a flag of 'bench %s', not of '%.40s'%s", row->name,
                        owner, opts->benchmark,
                        row->group == GROUP_LAUNCHER ? ", which takes --world-sizes" : "");
        if (as_ranks && is_of_training(row))
            return FAIL(STATUS_INVALID, "--%s: not a flag of 'bench all-reduce'", row->name);
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

json_t *bench_document(const options *opts, const char *title, int argc, char **argv)
{
    return report_create(&(report_head){"benchmark", opts->benchmark, title, argc, argv});
}

status bench_page_write(const char *folder)
{
    static const char *const documents[] = {"dp-vs-ddp.json", "scaling.json", NULL};
    return page_write(folder, "mnist_ddp: benchmarks", documents);
}

status bench_leave(const options *opts, bench_child *place, const char *folder,
                   const json_t *document)
{
    char name[64], *line = NULL;
    snprintf(name, sizeof name, "%s.json", opts->benchmark);
    TRY(report_write(document, folder, name));
    TRY(bench_page_write(folder));
    bench_child_release_signals(place);
    if (!opts->json) {
        report_print(document, stdout);
        printf("\nfigures: %s/%s; page: %s/report.html\n", folder, name, folder);
        return STATUS_OK;
    }
    TRY(json_text_print(document, JSON_COMPACT | JSON_REAL_PRECISION(10), &line));
    puts(line);
    free(line);
    return STATUS_OK;
}

int bench_command(const options *opts, int argc, char **argv)
{
    if (opts->quiet)
        log_set_level(LOG_WARNING);
    for (int i = 0; i < COUNT && opts->benchmark != NULL; i++)
        if (strcmp(opts->benchmark, BENCHMARKS[i].name) == 0 && BENCHMARKS[i].run != NULL) {
            status st = bench_check_flags(opts);
            return st == STATUS_OK ? BENCHMARKS[i].run(opts, argc, argv)
                                   : exit_code_failed(st, EXIT_CODE_USAGE);
        }
    return exit_code_failed(unknown(opts->benchmark), EXIT_CODE_USAGE);
}
