/* The subcommands. Each returns the exit code and has said why on stderr if it is not 0. */
#ifndef MNIST_DDP_APP_COMMON_COMMANDS_H
#define MNIST_DDP_APP_COMMON_COMMANDS_H

#include "app/options/options.h"
#include "base/status.h"

#include <stdint.h>

struct worker_spec;

/* Accuracy of a checkpoint on the test set. */
int eval_command(const options *opts);

/* A rank's indices of one epoch. */
int sampler_command(const options *opts);

/* Starts any program as several ranks, or prints what would be started. `started_ns`: when this
 * process began. */
int run_command(const options *opts, int64_t started_ns);

/* Prints a script that completes command lines in a shell, "bash", "zsh" or "fish". */
int completion_print(const char *shell);

/* The same for opts->shell; and the man page as roff. */
int completion_command(const options *opts);
int manual_command(const options *opts);

/* What opts->action says of the data sets that are here. */
int data_command(const options *opts);

/* Prints the address of a page to draw digits on and to watch a run, and serves it until a signal
 * ends the process. */
int serve_command(const options *opts);

/* A job's key-value store, as PyTorch's TCPStore: does what opts->action says, serves one until a
 * signal comes, or asks one. */
int store_command(const options *opts);

/* The actions' names, with spaces between them: "serve set get ...". */
const char *store_command_actions(void);

/* What a bug report needs. */
int env_command(const options *opts);

/* Looks whether a run with these settings can work here. Returns the exit code that such a run
 * would have, and has said why on stdout or stderr if it is not 0. */
int doctor_command(const options *opts);

/* What would end the ranks of `train` one after the other and is known before they start: data,
 * --init, modules, and on rank 0's node the folders; else *exit_code is what to exit with. */
status doctor_check_train(const options *opts, const struct worker_spec *spec, int *exit_code);

#endif
