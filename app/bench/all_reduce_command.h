/* mnist_ddp bench all-reduce. */
#ifndef MNIST_DDP_APP_BENCH_ALL_REDUCE_COMMAND_H
#define MNIST_DDP_APP_BENCH_ALL_REDUCE_COMMAND_H

#include "app/options/options.h"
#include "dist/rendezvous.h"

/* Is this the benchmark that was named? */
bool all_reduce_is_meant(const options *opts);

/* Of the flags, for an error that comes once and not from every rank. */
status all_reduce_check(const options *opts);

/* Measures as one rank; rank 0 prints. An exit code, as of app/commands.h; EXIT_CODE_INTERNAL also
 * if sums were wrong. */
int all_reduce_command(const options *opts, const rendezvous_place *place, int64_t started_ns);

#endif
