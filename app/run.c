/* mnist_ddp run: any program as several ranks, as torchrun does it. */
#include "app/commands.h"
#include "app/exit_codes.h"
#include "app/launch/agent.h"
#include "app/launch/launch_dry_run.h"

#include "base/log.h"
#include "base/team.h"

#include <stdlib.h>

static status prepare(const options *opts, worker_spec *out)
{
    launch_plan plan;
    int gpus = 0;
    TRY(launch_plan_count_gpus(opts, &gpus));
    TRY(launch_plan_make(opts, team_cores(), gpus, &plan));
    return worker_spec_make(opts, &plan, 0, NULL, out);
}

int run_command(const options *opts, int64_t started_ns)
{
    worker_spec spec = {.plan = {.nproc = 0}};
    status st = prepare(opts, &spec);
    int code = EXIT_SUCCESS;
    if (opts->quiet)
        log_set_level(LOG_WARNING);
    if (st == STATUS_OK && opts->dry_run)
        st = launch_dry_run(&spec);
    else if (st == STATUS_OK)
        code = agent_run(&spec, started_ns);
    worker_spec_free(&spec);
    return st == STATUS_OK ? code : exit_code_failed(st, EXIT_CODE_USAGE);
}
