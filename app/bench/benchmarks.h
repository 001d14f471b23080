/* One function per benchmark. Each returns the exit code and has said why on stderr where it is
 * not 0. `argc`, `argv`: the whole command line, for the record. */
#ifndef MNIST_DDP_APP_BENCHMARKS_H
#define MNIST_DDP_APP_BENCHMARKS_H

#include "app/options/options.h"

/* DataParallel beside DistributedDataParallel. */
int dp_vs_ddp_command(const options *opts, int argc, char **argv);

/* A cost model, fitted to this machine and projected to a cluster. */
int scaling_command(const options *opts, int argc, char **argv);

/* STATUS_INVALID where the command line has a flag that this benchmark does not know. */
status bench_check_flags(const options *opts);

#endif
