#include "app/common/commands.h"
#include "app/common/exit_codes.h"
#include "app/common/run_files.h"
#include "app/report/run_page.h"
#include "base/file.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

/* Those that are named, else the newest. */
static status write_page(const options *opts, char path[FILE_PATH_BYTES])
{
    char newest[FILE_PATH_BYTES];
    const char *const found_run = newest, *const *runs = opts->n_runs > 0 ? opts->runs : &found_run;
    bool found = opts->n_runs > 0;
    if (!found)
        TRY(runs_folder_newest(RUN_FILE_CONFIG, newest, &found));
    if (!found)
        return FAIL(STATUS_INVALID, "no folder in ./runs has a run: name the folder of one, or of "
                                    "several: mnist_ddp report RUN");
    if (opts->n_runs > 1)
        snprintf(path, FILE_PATH_BYTES, "%s", RUN_FILE_REPORT);
    else
        TRY(file_join(runs[0], RUN_FILE_REPORT, path));
    return run_page_write(path, runs, opts->n_runs > 0 ? opts->n_runs : 1);
}

int report_command(const options *opts)
{
    char path[FILE_PATH_BYTES];
    status st = write_page(opts, path);
    if (st != STATUS_OK)
        return exit_code_failed(st, EXIT_CODE_CHECKPOINT);
    char shown[FILE_PATH_BYTES];
    printable_copy(PRINTABLE_LINE, path, shown, sizeof shown);
    puts(shown);
    return EXIT_SUCCESS;
}
