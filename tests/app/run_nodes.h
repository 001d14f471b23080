/* Several launchers on this machine that make one job, through its loopback. */
#ifndef MNIST_DDP_TESTS_APP_RUN_NODES_H
#define MNIST_DDP_TESTS_APP_RUN_NODES_H

#include "dist/store/store.h"
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

/* Sets a key of the launchers, as any process that reaches the port may. */
static inline void set_in_store(int port, const char *key, const char *value)
{
    store *client = NULL;
    bool there = false;
    store_options how = {.host = "127.0.0.1",
                         .port = port,
                         .prefix = "mnist_ddp/launcher/none/",
                         .timeout_ms = 5000,
                         .connect_timeout_ms = 5000,
                         .describe = ""};
    ck_assert_int_eq(store_create(&how, &client), STATUS_OK);
    ck_assert_int_eq(store_set(client, key, value, strlen(value)), STATUS_OK);
    ck_assert_int_eq(store_check(client, key, &there), STATUS_OK);
    store_destroy(client);
}

#endif
