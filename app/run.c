/* mnist_ddp run: any program as several ranks, as torchrun does it. */
#include "app/commands.h"
#include "app/device_list.h"
#include "app/exit_codes.h"
#include "app/launch/launch.h"
#include "app/launch/launch_dry_run.h"

#include "base/log.h"
#include "base/team.h"

#include <stdlib.h>
#include <string.h>

/* GPUs of this machine, where the number of ranks depends on them: the driver is not asked else. */
static status count_gpus(const options *opts, int *out)
{
    const char *nproc = opts->nproc_per_node;
    *out = 0;
    if (nproc == NULL ? opts->world_size < 0
                      : strcmp(nproc, "gpu") != 0 && strcmp(nproc, "auto") != 0)
        return STATUS_OK;
    return device_list_count(opts, out);
}

static status prepare(const options *opts, launch_settings *out)
{
    launch_plan plan;
    int gpus = 0;
    TRY(count_gpus(opts, &gpus));
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
