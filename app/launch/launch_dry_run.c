#include "app/launch/launch_dry_run.h"

#include "app/launch/worker_environment.h"
#include "base/shell_words.h"

#include <stdio.h>
#include <stdlib.h>

static status print_rank(const worker_spec *spec, int node, int local_rank)
{
    const launch_plan *plan = &spec->plan;
    const worker_place place = {.rank = node * plan->nproc + local_rank,
                                .local_rank = local_rank,
                                .master_port = plan->master_port};
    char **argv = NULL, *environment = NULL, *line = NULL;
    status st = worker_environment_describe(spec, &place, &environment);
    if (st == STATUS_OK)
        st = entrypoint_argv(&spec->program, local_rank, &argv);
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

static status print_node(const worker_spec *whole, int node)
{
    worker_spec spec = *whole; /* owns nothing anew */
    spec.plan.node_rank = node;
    const launch_plan *plan = &spec.plan;
    int first = node * plan->nproc;
    printf("node %d of %d%s: ranks %d to %d of %d\n", node, plan->nnodes,
           node == whole->plan.node_rank ? " (this one)" : "", first, first + plan->nproc - 1,
           plan->world_size);
    for (int i = 0; i < plan->nproc; i++)
        TRY(print_rank(&spec, node, i));
    return STATUS_OK;
}

status launch_dry_run(const worker_spec *spec)
{
    const launch_plan *plan = &spec->plan;
    printf("store: served by %s at %s:%d%s\n",
           plan->by_arrival   ? "the launcher on the endpoint's host, which is node 0,"
           : plan->nnodes > 1 ? "node 0"
                              : "this launcher",
           plan->master_addr, plan->master_port, plan->master_port == 0 ? " (a free port)" : "");
    printf("restarts: %d at most\n", plan->max_restarts);
    for (int node = 0; node < plan->nnodes; node++)
        TRY(print_node(spec, node));
    return STATUS_OK;
}
