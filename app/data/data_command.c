#include "app/data/data_command.h"

#include "app/common/exit_codes.h"
#include "app/data/fetch.h"
#include "app/data/set_report.h"
#include "app/data/show.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of n sets; free with free(). */
static status alloc_reports(int n, set_report **out)
{
    void *memory = NULL;
    TRY(memory_alloc(sizeof **out * (size_t)n, &memory));
    *out = memory;
    return STATUS_OK;
}

/* All data sets, or the one that is asked for. */
static int info(const options *opts, dataset_kind asked)
{
    set_report *sets = NULL;
    bool one = options_given(opts, "dataset");
    int n = 0;
    status st = alloc_reports(DATASET_KINDS, &sets);
    if (st != STATUS_OK)
        return exit_code_failed(st, EXIT_CODE_INTERNAL);
    for (int kind = 0; kind < DATASET_KINDS; kind++)
        if (!one || kind == (int)asked)
            set_report_find((dataset_kind)kind, opts->data_dir, &sets[n++]);
    st = opts->json ? set_report_print_json(sets, n) : STATUS_OK;
    for (int i = 0; i < n && !opts->json; i++)
        set_report_print(&sets[i]);
    free(sets);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, EXIT_CODE_INTERNAL);
}

static int verify(const options *opts, dataset_kind asked)
{
    set_report *set = NULL;
    int code = EXIT_CODE_INTERNAL;
    status st = alloc_reports(1, &set);
    if (st != STATUS_OK)
        return exit_code_failed(st, code);
    set_report_find(asked, opts->data_dir, set);
    if (opts->json)
        st = set_report_print_json(set, 1);
    else
        set_report_print(set);
    if (st == STATUS_OK) {
        code = EXIT_CODE_DATA;
        st = set_report_check(set);
    }
    free(set);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, code);
}

typedef int data_action(const options *opts, dataset_kind asked);

int data_command(const options *opts)
{
    static const struct {
        const char *name;
        data_action *act;
    } actions[] = {{"fetch", fetch}, {"info", info}, {"verify", verify}, {"show", show}};
    dataset_kind asked;
    status st = dataset_kind_parse(opts->dataset, &asked);
    if (st != STATUS_OK)
        return exit_code_failed(st, EXIT_CODE_USAGE);
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++)
        if (opts->action != NULL && strcmp(opts->action, actions[i].name) == 0)
            return actions[i].act(opts, asked);
    FAIL(STATUS_INVALID,
         "data: what about it? fetch, info, verify or show, as in mnist_ddp data fetch");
    return exit_code_failed(STATUS_INVALID, EXIT_CODE_USAGE);
}
