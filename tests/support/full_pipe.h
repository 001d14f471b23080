/* A pipe that is full, and that nobody reads: a pager, or a terminal that was stopped. */
#ifndef MNIST_DDP_TESTS_SUPPORT_FULL_PIPE_H
#define MNIST_DDP_TESTS_SUPPORT_FULL_PIPE_H

#include "tests/support/program.h"

typedef struct full_pipe {
    int from, into; /* its ends */
} full_pipe;

void full_pipe_open(full_pipe *out);
void full_pipe_close(full_pipe *pipe);

/* Starts argv[0] with argv (NULL at the end); its stdout or stderr (`fd`) is the pipe. */
program full_pipe_start(const full_pipe *pipe, int fd, const char *const *argv);

/* Reads all that was in the pipe, and what comes after it, until that holds `words`; fails the test
 * after timeout_s. */
void full_pipe_await(full_pipe *pipe, const char *words, int timeout_s);

#endif
