/* All that a launch needs to know before it begins. */
#ifndef MNIST_DDP_APP_LAUNCH_SETTINGS_H
#define MNIST_DDP_APP_LAUNCH_SETTINGS_H

#include "app/launch/launch_logs.h"
#include "app/launch/launch_plan.h"
#include "app/launch/launch_program.h"
#include "app/launch/launch_rules.h"
#include "app/options/options.h"

typedef struct launch_settings {
    launch_plan plan;
    launch_rules rules;
    launch_logs logs;
    launch_program program;
    char run_dir[FILE_PATH_BYTES]; /* for the workers of `train`; "" where they need not be told */
    bool virtual_local_rank;       /* each worker sees one GPU, and LOCAL_RANK=0 */
    bool stdout_has_result;        /* what the ranks print is no mere progress */
    bool port_busy;                /* --inject=port-busy: the store's port is taken already */
} launch_settings;

/* The launch of `train` (this program again) or `run` (any program) that the plan asks for. */
status launch_settings_make(const options *opts, const launch_plan *plan, int argc, char **argv,
                            launch_settings *out);
void launch_settings_free(launch_settings *settings);

#endif
