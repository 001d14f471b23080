#include "app/launch/launch_dry_run.h"

#include "app/launch/launch_environment.h"
#include "base/shell_words.h"

#include <stdio.h>
#include <stdlib.h>

static status print_rank(const launch_settings *settings, int node, int local_rank)
{
    const launch_plan *plan = &settings->plan;
    const launch_place place = {.rank = node * plan->nproc + local_rank,
                                .local_rank = local_rank,
                                .master_port = plan->master_port};
    char **argv = NULL, *environment = NULL, *line = NULL;
    status st = launch_environment_describe(settings, &place, &environment);
    if (st == STATUS_OK)
        st = launch_program_argv(&settings->program, local_rank, &argv);
    if (st == STATUS_OK) {
        line = shell_words_line(argv);
        if (line == NULL)
            st = FAIL(STATUS_NO_MEMORY, "the program's arguments");
    }
    if (st == STATUS_OK)
        printf("  rank %d: %s\n    %s\n", place.rank, line, environment);
    free(line);
    free(argv);
    free(environment);
    return st;
}

static status print_node(const launch_settings *whole, int node)
{
    launch_settings settings = *whole; /* owns nothing anew */
    settings.plan.node_rank = node;
    const launch_plan *plan = &settings.plan;
    int first = node * plan->nproc;
    printf("node %d of %d%s: ranks %d to %d of %d\n", node, plan->nnodes,
           node == whole->plan.node_rank ? " (this one)" : "", first, first + plan->nproc - 1,
           plan->world_size);
    for (int i = 0; i < plan->nproc; i++)
        TRY(print_rank(&settings, node, i));
    return STATUS_OK;
}

status launch_dry_run(const launch_settings *settings)
{
    const launch_plan *plan = &settings->plan;
    printf("store: served by %s at %s:%d%s\n",
           plan->by_arrival   ? "the launcher on the endpoint's host, which is node 0,"
           : plan->nnodes > 1 ? "node 0"
                              : "this launcher",
           plan->master_addr, plan->master_port, plan->master_port == 0 ? " (a free port)" : "");
    printf("restarts: %d at most\n", plan->max_restarts);
    for (int node = 0; node < plan->nnodes; node++)
        TRY(print_node(settings, node));
    return STATUS_OK;
}
