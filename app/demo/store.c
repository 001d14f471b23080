/* The store: what TCPStore's set, get, wait, add and compare_set do among the ranks. */
#include "dist/store/store.h"

#include "app/demo/demo.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LATE_MS = 300, WAIT_MS = 500, TIMEOUT_MS = 30000, PORT_BYTES = 16 };

typedef struct shown_store {
    demo *d;
    store_server *server; /* rank 0's */
    store *client;
} shown_store;

static status show_open(shown_store *s)
{
    demo *d = s->d;
    char port[PORT_BYTES];
    if (d->rank == 0)
        TRY(store_server_create(d->place.master_addr, 0, &s->server));
    snprintf(port, sizeof port, "%d", s->server != NULL ? store_server_port(s->server) : 0);
    TRY(demo_share(d, "demo/store/port", port, sizeof port));
    TRY(store_create(&(store_options){.host = d->place.master_addr,
                                      .port = atoi(port),
                                      .timeout_ms = TIMEOUT_MS,
                                      .connect_timeout_ms = TIMEOUT_MS},
                     &s->client));
    demo_begin(d, "TCPStore(\"%s\", %s, %d, is_master)", d->place.master_addr, port, d->world_size);
    demo_say(d, "A store is a table of keys and values that all ranks see. One process serves it "
                "at a port, here rank 0: is_master is True there. The others connect, and all may "
                "set and get.");
    demo_say(d, "Every job has one. The launcher serves it, or rank 0, at MASTER_ADDR and "
                "MASTER_PORT.");
    demo_columns(d, "|is_master");
    demo_row(d, "rank %d|%s", d->rank, d->rank == 0 ? "True" : "False");
    return demo_show(d);
}

/* "rank 1 | get("first_key") | 0 ms | 301 ms | first_value" */
static void tell(demo *d, const char *call, double begins_ms, double ends_ms, const char *result)
{
    demo_columns(d, "|call|begins|ends|result");
    demo_row(d, "rank %d|%s|%.0f ms|%.0f ms|%s", d->rank, call, begins_ms, ends_ms, result);
}

static status show_get(shown_store *s)
{
    demo *d = s->d;
    static const char value[] = "first_value";
    void *got = NULL;
    size_t size_bytes = 0;
    int64_t start_ns;
    TRY(demo_begin_together(s->d, &start_ns));
    clock_sleep_ms(d->rank == 0 ? LATE_MS : 0);
    double begins_ms = demo_since_ms(start_ns);
    if (d->rank == 0)
        TRY(store_set(s->client, "first_key", value, strlen(value)));
    else
        TRY(store_get(s->client, "first_key", &got, &size_bytes));
    double ends_ms = demo_since_ms(start_ns);
    demo_begin(d, "store.set(\"first_key\", \"first_value\") and store.get(\"first_key\")");
    demo_say(d,
             "The other ranks get a key that is not there yet. get waits until it is: rank 0 sets "
             "it %d ms later. So a get is also a way to wait for somebody.",
             LATE_MS);
    tell(d, d->rank == 0 ? "set" : "get", begins_ms, ends_ms, got != NULL ? got : "");
    free(got);
    return demo_show(d);
}

static status show_wait(shown_store *s)
{
    demo *d = s->d;
    int64_t start_ns;
    TRY(demo_begin_together(s->d, &start_ns));
    status st = store_wait(s->client, "second_key", WAIT_MS);
    double ends_ms = demo_since_ms(start_ns);
    if (st == STATUS_OK)
        return FAIL(STATUS_DEVICE, "the key that nobody has set is there");
    const char *why = status_text();
    demo_begin(d, "store.wait([\"second_key\"], timedelta(milliseconds=%d))", WAIT_MS);
    demo_say(d, "Nobody sets this key. Every wait has a deadline, else a rank whose partner is "
                "dead would wait for ever. After it the wait fails:");
    demo_say(d, "%s", why);
    tell(d, "wait", 0, ends_ms, st == STATUS_TIMEOUT ? "timed out" : "failed");
    demo_fact(d, "waited_ms", json_real(ends_ms));
    return demo_show(d);
}

static status show_add(shown_store *s)
{
    demo *d = s->d;
    int64_t result, now;
    TRY(store_add(s->client, "counter", 1, &result));
    TRY(process_group_barrier(d->group));
    TRY(store_add(s->client, "counter", 0, &now));
    demo_begin(d, "store.add(\"counter\", 1)");
    demo_say(d, "All ranks add 1 to one counter at the same time. The server takes one call after "
                "the other. So none is lost, and each rank gets another number: the order in which "
                "they came.");
    demo_say(d, "Whoever gets %d is the last. That is how ranks count themselves when they meet.",
             d->world_size);
    demo_columns(d, "|its add returned|in the end it is");
    demo_row(d, "rank %d|#%lld|#%lld", d->rank, (long long)result, (long long)now);
    return demo_show(d);
}

static status show_compare(shown_store *s)
{
    demo *d = s->d;
    char own[32];
    void *holds = NULL;
    size_t size_bytes;
    int64_t start_ns;
    snprintf(own, sizeof own, "rank %d", d->rank);
    TRY(demo_begin_together(s->d, &start_ns));
    TRY(store_compare_set(s->client, "leader", "", own, &holds, &size_bytes));
    demo_begin(d, "store.compare_set(\"leader\", \"\", \"rank r\")");
    demo_say(d, "Set it if it is not there yet. All ranks try at the same time, each with its own "
                "name. The first one wins, and all see the same winner. Who that is may change "
                "from run to run.");
    demo_columns(d, "|wants to set|it holds");
    demo_row(d, "%s|%s|%s", own, own, (const char *)holds);
    free(holds);
    TRY(demo_show(d));
    demo_begin(d, "What a store is for");
    demo_say(d, "For small things: an address, a number, who is there. Each call is a message to "
                "one server and back. Tensors do not go through it, but from rank to rank: demo "
                "ring.");
    demo_say(d, "mnist_ddp demo rendezvous shows what ranks put in it when they meet. mnist_ddp "
                "store serves one, and asks it, from a terminal.");
    return demo_show(d);
}

static status show_all(shown_store *s)
{
    TRY(show_open(s));
    TRY(show_get(s));
    TRY(show_wait(s));
    TRY(show_add(s));
    return show_compare(s);
}

status store_demo(demo *d)
{
    shown_store s = {.d = d};
    status_kept cause;
    status st = show_all(&s);
    status_keep(&cause);
    store_destroy(s.client);
    store_server_destroy(s.server);
    status_restore(&cause);
    return st;
}
