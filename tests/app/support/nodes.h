/* Several launchers on this machine that make one job, through its loopback. */
#ifndef MNIST_DDP_TESTS_APP_SUPPORT_NODES_H
#define MNIST_DDP_TESTS_APP_SUPPORT_NODES_H

#include "tests/app/support/run_command.h"

enum { FLAGS_BYTES = 512 };

/* Starts node `node` of a static job: two ranks, the store on loopback's `port`. */
program nodes_start(int node, int port, const char *flags, const char *script);

/* Starts a node of a job whose nodes are numbered as they come: c10d, at loopback's `port`. */
program nodes_start_c10d(int port, const char *flags, const char *script);

/* Waits for all, each at most RUN_S. */
void nodes_wait(program *p, int n);

void nodes_close(program *p, int n);

/* Sets a key of the launchers, as any process that reaches the port may. */
void nodes_set_key(int port, const char *key, const char *value);

/* The same of a watched key. */
void nodes_put_key(int port, const char *key, const char *value);

/* As one that also passes itself off as node 1's launcher. */
void nodes_end_node_1(int port, const char *how);

#endif
