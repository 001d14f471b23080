/* One function per subcommand. Each returns the exit code and has said why on stderr where it is
 * not 0. */
#ifndef MNIST_DDP_APP_COMMANDS_H
#define MNIST_DDP_APP_COMMANDS_H

#include "app/options/options.h"
#include "dist/rendezvous.h"

/* Trains as one rank. `started_ns`: when the launcher, or this process, began. */
int train_command(const options *opts, const rendezvous_place *place, int64_t started_ns);

/* Accuracy of a checkpoint on the test set. */
int eval_command(const options *opts);

/* A rank's indices of one epoch. */
int sampler_command(const options *opts);

/* Starts any program as several ranks, or prints what would be started. `started_ns`: when this
 * process began. */
int run_command(const options *opts, int64_t started_ns);

/* Measures; opts->benchmark says what. `argc`, `argv`: the whole command line, for the record. */
int bench_command(const options *opts, int argc, char **argv);

/* Looks whether a run with these settings can work here; the first problem's exit code. */
int doctor_command(const options *opts);

/* What a bug report needs. */
int env_command(const options *opts);

#endif
