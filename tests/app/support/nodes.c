#include "tests/app/support/nodes.h"

#include "base/clock.h"
#include "dist/store/store.h"
#include "tests/app/support/launcher_keys.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

program nodes_start(int node, int port, const char *flags, const char *script)
{
    char all[FLAGS_BYTES];
    snprintf(all, sizeof all,
             "--master-addr=127.0.0.1 --master-port=%d --node-rank=%d --nproc-per-node=2 %s", port,
             node, flags);
    return run_command_start(all, script);
}

program nodes_start_c10d(int port, const char *flags, const char *script)
{
    char all[FLAGS_BYTES];
    snprintf(all, sizeof all,
             "--rdzv-backend=c10d --rdzv-endpoint=localhost:%d --nproc-per-node=2 %s", port, flags);
    return run_command_start(all, script);
}

void nodes_wait(program *p, int n)
{
    for (int i = 0; i < n; i++)
        program_wait(&p[i], RUN_S);
}

void nodes_close(program *p, int n)
{
    for (int i = 0; i < n; i++)
        program_close(&p[i]);
}

static store *stranger_at(int port)
{
    store *client = NULL;
    store_options how = {.host = "127.0.0.1",
                         .port = port,
                         .prefix = "mnist_ddp/launcher/none/",
                         .timeout_ms = 5000,
                         .connect_timeout_ms = 5000,
                         .describe = ""};
    ck_assert_int_eq(store_create(&how, &client), STATUS_OK);
    return client;
}

static void put_key(store *client, const char *key, const char *value)
{
    const store_put_options how = {.value = value, .expected = -1};
    int64_t revision = 0;
    ck_assert_int_eq(store_put(client, key, &how, &revision), STATUS_OK);
}

static void set_key(store *client, const char *key, const char *value)
{
    bool there = false;
    ck_assert_int_eq(store_set(client, key, value, strlen(value)), STATUS_OK);
    ck_assert_int_eq(store_check(client, key, &there), STATUS_OK);
}

void nodes_set_key(int port, const char *key, const char *value)
{
    store *client = stranger_at(port);
    set_key(client, key, value);
    store_destroy(client);
}

void nodes_put_key(int port, const char *key, const char *value)
{
    store *client = stranger_at(port);
    put_key(client, key, value);
    store_destroy(client);
}

void nodes_end_node_1(int port, const char *how)
{
    store *client = stranger_at(port);
    put_key(client, KEY_ALIVE_OF_NODE_1, "1 of 1");
    set_key(client, KEY_END_OF_NODE_1, how);
    clock_sleep_ms(300); /* node 0 looks every 100 ms */
    store_destroy(client);
}
