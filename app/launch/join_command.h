/* What to type on another node of a job whose nodes are numbered: this command, with its number. */
#ifndef MNIST_DDP_APP_LAUNCH_JOIN_COMMAND_H
#define MNIST_DDP_APP_LAUNCH_JOIN_COMMAND_H

#include "app/launch/worker_spec.h"

/* A line for a shell: all that was typed here but --node-rank, and what is known here by other
 * ways: node 0's address, variables, a file. `node`: its number; -1: "N". Free with free(). NULL:
 * no memory, or the spec is of no command line. */
char *join_command(const worker_spec *spec, int node);

#endif
