/* mnist_ddp run: any program as several ranks, as torchrun does it. */
#include "app/common/commands.h"
#include "app/common/exit_codes.h"
#include "app/launch/agent.h"
#include "app/launch/workers.h"
#include "app/train/failure.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>

static status prepare(const options *opts, worker_spec *out)
{
    int gpus = 0;
    TRY(worker_spec_count_gpus(opts, &gpus));
    TRY(worker_spec_read(opts, cores_count(), gpus, out));
    if (opts->dry_run && out->counts_nodes)
        return FAIL(STATUS_INVALID,
                    "--dry-run: how many machines there are is known once they have met: give "
                    "--nnodes=N");
    return worker_spec_complete(opts, 0, NULL, out);
}

static status print_rank(const worker_spec *spec, int node, int local_rank)
{
    const worker_start start = {.spec = spec, .has_told = node > 0};
    const worker w = {.rank = worker_spec_first_rank(spec, node) + local_rank,
                      .local_rank = local_rank};
    char **argv = NULL, *environment = NULL, *line = NULL;
    status st = worker_describe_environment(&w, &start, &environment);
    if (st == STATUS_OK)
        st = entrypoint_argv(&spec->program, local_rank, &argv);
    if (st == STATUS_OK) {
        line = shell_words_line(argv);
        if (line == NULL)
            st = FAIL(STATUS_NO_MEMORY, "the program's arguments");
    }
    if (st == STATUS_OK)
        printf("  rank %d: %s\n    %s\n", w.rank, line, environment);
    free(line);
    free(argv);
    free(environment);
    return st;
}

static status print_node(const worker_spec *whole, int node)
{
    worker_spec spec = *whole; /* owns nothing anew */
    spec.node_rank = node;
    char ranks[SPEC_RANKS_BYTES];
    printf("node %d of %d%s: %s\n", node, spec.nnodes,
           node == whole->node_rank ? " (this one)" : "", worker_spec_ranks(&spec, ranks));
    for (int i = 0; i < spec.nproc; i++)
        TRY(print_rank(&spec, node, i));
    return STATUS_OK;
}

/* --dry-run: what would be started, on every node. */
static status print_plan(const worker_spec *spec)
{
    if (worker_spec_is_elastic(spec))
        printf("nodes: %d to %d, numbered as they come; they meet at %s\n", spec->rdzv.min_nodes,
               spec->rdzv.max_nodes, spec->endpoints);
    else
        printf("store: served by %s at %s:%d%s\n", spec->nnodes > 1 ? "node 0" : "this launcher",
               spec->master_addr, spec->master_port,
               spec->master_port == 0 ? " (a free port)" : "");
    printf("restarts: %d at most\n", spec->max_restarts);
    for (int node = 0; node < spec->nnodes; node++)
        TRY(print_node(spec, node));
    return STATUS_OK;
}

int run_command(const options *opts, int64_t started_ns)
{
    worker_spec spec = {.nproc = 0};
    if (opts->run.print_completion != NULL)
        return completion_print(opts->run.print_completion);
    status st = prepare(opts, &spec);
    int code = EXIT_SUCCESS;
    if (opts->quiet)
        log_set_level(LOG_WARNING);
    if (st == STATUS_OK && opts->dry_run)
        st = print_plan(&spec);
    else if (st == STATUS_OK)
        code = agent_run(&spec, started_ns);
    worker_spec_free(&spec);
    return st == STATUS_OK ? code : failure_before_start(st, EXIT_CODE_USAGE);
}
