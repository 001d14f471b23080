#include "app/commands.h"
#include "app/common/exit_codes.h"
#include "app/common/run_files.h"
#include "app/report/run_page.h"
#include "base/file.h"
#include "base/printable.h"

#include <stdio.h>
#include <stdlib.h>

static status write_page(const options *opts, char path[FILE_PATH_BYTES])
{
    if (opts->n_runs > 1)
        snprintf(path, FILE_PATH_BYTES, "%s", RUN_FILE_REPORT);
    else
        TRY(file_join(opts->runs[0], RUN_FILE_REPORT, path));
    return run_page_write(path, opts->runs, opts->n_runs);
}

int report_command(const options *opts)
{
    char path[FILE_PATH_BYTES];
    if (opts->n_runs == 0) {
        FAIL(STATUS_INVALID, "report: name the folder of a run, or several: mnist_ddp report RUN");
        return exit_code_failed(STATUS_INVALID, EXIT_CODE_USAGE);
    }
    status st = write_page(opts, path);
    if (st != STATUS_OK)
        return exit_code_failed(st, EXIT_CODE_CHECKPOINT);
    char shown[FILE_PATH_BYTES];
    printable_copy(PRINTABLE_LINE, path, shown, sizeof shown);
    puts(shown);
    return EXIT_SUCCESS;
}
