/* All that a launch needs to know before it begins. */
#ifndef MNIST_DDP_APP_LAUNCH_WORKER_SPEC_H
#define MNIST_DDP_APP_LAUNCH_WORKER_SPEC_H

#include "app/launch/entrypoint.h"
#include "app/launch/launch_plan.h"
#include "app/launch/shutdown_policy.h"
#include "app/launch/worker_logs.h"
#include "app/options/options.h"

typedef struct worker_spec {
    launch_plan plan;
    shutdown_policy policy;
    worker_logs logs;
    entrypoint program;
    char run_dir[FILE_PATH_BYTES]; /* for the workers of `train`; "" where they need not be told */
    bool virtual_local_rank;       /* each worker sees one GPU, and LOCAL_RANK=0 */
    bool stdout_has_result;        /* what the ranks print is no mere progress */
    bool port_busy;                /* --inject=port-busy: the store's port is taken already */
} worker_spec;

/* The launch of `train` (this program again) or `run` (any program) that the plan asks for. */
status worker_spec_make(const options *opts, const launch_plan *plan, int argc, char **argv,
                        worker_spec *out);
void worker_spec_free(worker_spec *spec);

#endif
