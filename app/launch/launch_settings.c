#include "app/launch/launch_settings.h"

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

/* The folder must be the same one for all generations, so it cannot be named by the time of each.
 * Rank 0 is on node 0. */
static status choose_run_dir(const options *opts, const launch_plan *plan, char *out)
{
    out[0] = '\0';
    if (opts->run_dir != NULL || opts->resume != NULL || plan->node_rank > 0)
        return STATUS_OK;
    return run_folder_choose(opts, out);
}

status launch_settings_make(const options *opts, const launch_plan *plan, int argc, char **argv,
                            launch_settings *out)
{
    memset(out, 0, sizeof *out);
    out->plan = *plan;
    out->port_busy = opts->inject != NULL && strstr(opts->inject, "port-busy") != NULL;
    out->virtual_local_rank = opts->virtual_local_rank;
    out->stdout_has_result = standard_streams_carry_result(opts);
    if (out->virtual_local_rank)
        TRY(check_virtual(plan));
    TRY(launch_rules_make(opts, &out->rules));
    TRY(launch_logs_read(opts, plan->nproc, &out->logs));
    if (!out->rules.own)
        return launch_program_find(opts, &out->program);
    if (opts->command == COMMAND_TRAIN)
        TRY(choose_run_dir(opts, plan, out->run_dir));
    return launch_program_self(argc, argv, &out->program);
}

void launch_settings_free(launch_settings *settings)
{
    launch_program_free(&settings->program);
}
