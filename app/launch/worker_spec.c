#include "app/launch/worker_spec.h"

#include "app/standard_streams.h"
#include "app/train/run_folder.h"

#include <stdlib.h>
#include <string.h>

/* Every worker needs a GPU of its own in the list that the launcher was given. */
static status check_virtual(const launch_plan *plan)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int listed = 1;
    if (list == NULL)
        return STATUS_OK;
    for (const char *c = list; *c != '\0'; c++)
        listed += *c == ',';
    if (plan->nproc > listed)
        return FAIL(STATUS_INVALID,
                    "--virtual-local-rank: %d ranks, but CUDA_VISIBLE_DEVICES=%.80s names %d GPU%s",
                    plan->nproc, list, listed, listed == 1 ? "" : "s");
    return STATUS_OK;
}

/* The folder must be the same one for all attempts, so it cannot be named by the time of each.
 * Rank 0 is on node 0. */
static status choose_run_dir(const options *opts, const launch_plan *plan, char *out)
{
    out[0] = '\0';
    if (opts->run_dir != NULL || opts->resume != NULL || plan->node_rank > 0)
        return STATUS_OK;
    return run_folder_choose(opts, out);
}

status worker_spec_make(const options *opts, const launch_plan *plan, int argc, char **argv,
                        worker_spec *out)
{
    memset(out, 0, sizeof *out);
    out->plan = *plan;
    out->port_busy = opts->inject != NULL && strstr(opts->inject, "port-busy") != NULL;
    out->virtual_local_rank = opts->virtual_local_rank;
    out->stdout_has_result = standard_streams_carry_result(opts);
    if (out->virtual_local_rank)
        TRY(check_virtual(plan));
    TRY(shutdown_policy_make(opts, &out->policy));
    TRY(worker_logs_read(opts, plan->nproc, &out->logs));
    if (!out->policy.own)
        return entrypoint_find(opts, &out->program);
    if (opts->command == COMMAND_TRAIN)
        TRY(choose_run_dir(opts, plan, out->run_dir));
    return entrypoint_self(argc, argv, &out->program);
}

void worker_spec_free(worker_spec *spec)
{
    entrypoint_free(&spec->program);
}
