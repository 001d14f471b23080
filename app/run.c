/* mnist_ddp run: any program as several ranks, as torchrun does it. */
#include "app/commands.h"
#include "app/common/exit_codes.h"
#include "app/launch/agent.h"
#include "app/launch/worker_spec.h"

#include "base/log.h"
#include "base/team.h"

#include <stdlib.h>

static status prepare(const options *opts, worker_spec *out)
{
    int gpus = 0;
    TRY(worker_spec_count_gpus(opts, &gpus));
    TRY(worker_spec_read(opts, team_cores(), gpus, out));
    return worker_spec_complete(opts, 0, NULL, out);
}

int run_command(const options *opts, int64_t started_ns)
{
    worker_spec spec = {.nproc = 0};
    status st = prepare(opts, &spec);
    int code = EXIT_SUCCESS;
    if (opts->quiet)
        log_set_level(LOG_WARNING);
    if (st == STATUS_OK && opts->dry_run)
        st = worker_spec_print(&spec);
    else if (st == STATUS_OK)
        code = agent_run(&spec, started_ns);
    worker_spec_free(&spec);
    return st == STATUS_OK ? code : exit_code_failed(st, EXIT_CODE_USAGE);
}
