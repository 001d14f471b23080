/* mnist_ddp run: any program as several ranks, as torchrun does it. */
#include "app/commands.h"
#include "app/exit_codes.h"
#include "app/launch/launch.h"
#include "app/launch/launch_dry_run.h"

#include "base/log.h"
#include "base/team.h"

#include <stdlib.h>

static status prepare(const options *opts, launch_settings *out)
{
    launch_plan plan;
    int gpus = 0;
    TRY(launch_plan_count_gpus(opts, &gpus));
    TRY(launch_plan_make(opts, team_cores(), gpus, &plan));
    return launch_settings_make(opts, &plan, 0, NULL, out);
}

int run_command(const options *opts, int64_t started_ns)
{
    launch_settings settings = {.plan = {.nproc = 0}};
    status st = prepare(opts, &settings);
    int code = EXIT_SUCCESS;
    if (opts->quiet)
        log_set_level(LOG_WARNING);
    if (st == STATUS_OK && opts->dry_run)
        st = launch_dry_run(&settings);
    else if (st == STATUS_OK)
        code = launch_run(&settings, started_ns);
    launch_settings_free(&settings);
    return st == STATUS_OK ? code : exit_code_failed(st, EXIT_CODE_USAGE);
}
