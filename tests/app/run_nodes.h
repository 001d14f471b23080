/* Several launchers on this machine that make one job, through its loopback. */
#ifndef MNIST_DDP_TESTS_APP_RUN_NODES_H
#define MNIST_DDP_TESTS_APP_RUN_NODES_H

#include "tests/app/run_lines.h"

enum { FLAGS_BYTES = 512 };

/* Starts node `node` of a static job. */
static inline program start_node(int node, int port, const char *flags, const char *script)
{
    char all[FLAGS_BYTES];
    snprintf(all, sizeof all,
             "--master-addr=127.0.0.1 --master-port=%d --node-rank=%d --nproc-per-node=2 %s", port,
             node, flags);
    return run_start(all, script);
}

/* Starts a node of a job whose nodes are numbered as they come. */
static inline program start_comer(int port, const char *flags, const char *script)
{
    char all[FLAGS_BYTES];
    snprintf(all, sizeof all,
             "--rdzv-backend=c10d --rdzv-endpoint=localhost:%d --nproc-per-node=2 %s", port, flags);
    return run_start(all, script);
}

static inline void wait_all(program *p, int n)
{
    for (int i = 0; i < n; i++)
        program_wait(&p[i], RUN_S);
}

static inline void close_all(program *p, int n)
{
    for (int i = 0; i < n; i++)
        program_close(&p[i]);
}

#endif
