/* `mnist_ddp run` with a line of flags, and a shell script as the program. */
#ifndef MNIST_DDP_TESTS_APP_SUPPORT_RUN_COMMAND_H
#define MNIST_DDP_TESTS_APP_SUPPORT_RUN_COMMAND_H

#include "tests/support/program.h"

enum { RUN_LINE_BYTES = 2048 };

/* Starts "mnist_ddp run FLAGS -- sh -c SCRIPT"; FLAGS are words separated by blanks. */
program run_command_start(const char *flags, const char *script);

/* The same, and waits until it ends. */
program run_command(const char *flags, const char *script);

/* The only folder below `base`. */
const char *run_command_job_folder(const char *base);

#endif
