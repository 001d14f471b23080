#include "dist/store/store.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/net/socket.h"
#include "dist/net/socket_breaker.h"
#include "dist/net/socket_route.h"
#include "dist/store/store_exchange.h"
#include "dist/store/store_wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FIRST_RETRY_MS = 10,
    LAST_RETRY_MS = 500,
    FIRST_LINE_MS = 3000, /* the first line about waiting, */
    NEXT_LINE_MS = 5000,  /* and those after it */
    ATTEMPT_MS = 5000,    /* one attempt to connect and to be greeted */
    STRANGER_BYTES = 40,  /* of what answers and is no store, for the message */
    BREAK_MS = 1000,      /* to connect, if a breaker may end it: it looks in between */
    CANCEL_MS = 2000,     /* a server that lives answers a cancellation by then */
};

/* What has come instead of an echo. More of it may be there already. */
static status name_stranger(int fd, const uint8_t echo[4])
{
    uint8_t bytes[STRANGER_BYTES];
    char shown[4 * STRANGER_BYTES + 1];
    size_t more = 0;
    memcpy(bytes, echo, 4);
    if (socket_receive_some(fd, bytes + 4, sizeof bytes - 4, &more) != STATUS_OK)
        more = 0;
    printable_bytes(bytes, 4 + more, shown, sizeof shown);
    return FAIL(STATUS_INVALID, "what listens there is no store: it answers \"%s\"", shown);
}

/* Greets and asks for an echo: only a store that has taken the connection answers. The nonce ends a
 * line, so that a server of lines (HTTP, SMTP) answers, too, and is named. */
static status greet(int fd, int64_t deadline_ns)
{
    enum { NONCE = 0x0a0d6e6d };
    uint8_t request[STORE_GREETING_BYTES + 5] = {STORE_VALIDATE}, echo[4];
    store_wire_put_u32(request + 1, STORE_MAGIC);
    request[STORE_GREETING_BYTES] = STORE_PING;
    store_wire_put_u32(request + STORE_GREETING_BYTES + 1, NONCE);
    TRY(socket_send(fd, request, sizeof request, deadline_ns));
    status st = socket_receive(fd, echo, sizeof echo, deadline_ns);
    if (st == STATUS_PEER || st == STATUS_TIMEOUT)
        status_append(", in answer to a store's greeting");
    TRY(st);
    return store_wire_u32(echo) == NONCE ? STATUS_OK : name_stranger(fd, echo);
}

static status connect_once(store *client, const store_options *options, int64_t deadline_ns)
{
    int64_t attempt_ns = clock_deadline_ns(ATTEMPT_MS);
    if (attempt_ns > deadline_ns)
        attempt_ns = deadline_ns;
    int64_t connect_ns = client->breaker != NULL ? clock_deadline_ns(BREAK_MS) : attempt_ns;
    int fd = -1;
    TRY(socket_connect(options->host, options->port,
                       connect_ns < attempt_ns ? connect_ns : attempt_ns, &fd));
    socket_breaker_set(client->breaker, fd);
    status st = greet(fd, attempt_ns);
    if (st != STATUS_OK) {
        socket_breaker_set(client->breaker, -1);
        close(fd);
        return status_context(st, "%s", client->where);
    }
    client->fd = fd;
    return STATUS_OK;
}

/* What a failed attempt means to the one who waits. */
static const char *hint_of(status st)
{
    switch (st) {
    case STATUS_TIMEOUT: /* nobody says no */
        return "is that address right, does a firewall swallow what goes there, or has what "
               "listens no descriptor left (ulimit -n)?";
    case STATUS_UNKNOWN_HOST:
        return "is the name right, and known on this host?";
    default: /* refused, or no store */
        return "has rank 0 started, on that host?";
    }
}

/* " from eth0 (192.168.0.5)", or nothing if that is not known. */
static void describe_way(const char *host, char *out, size_t size_bytes)
{
    char route[SOCKET_ROUTE_BYTES];
    socket_route_describe(host, route);
    snprintf(out, size_bytes, "%s%s", route[0] != '\0' ? " from " : "", route);
}

/* Tries until the deadline. Any failure may pass: even a name may come to exist.
 */
static status connect_patiently(store *client, const store_options *options)
{
    int64_t start_ns = clock_now_ns();
    int64_t deadline_ns = clock_deadline_ns(options->connect_timeout_ms);
    int64_t line_ns = start_ns + (int64_t)FIRST_LINE_MS * 1000000;
    const char *describe = options->describe != NULL ? options->describe : "";
    const char *colon = describe[0] != '\0' ? ": " : "";
    for (int64_t pause_ms = FIRST_RETRY_MS;; pause_ms *= 2) {
        if (socket_breaker_is_broken(client->breaker))
            return FAIL(STATUS_PEER, "the wait for the store at %s was ended", client->where);
        status st = connect_once(client, options, deadline_ns);
        if (st == STATUS_OK || st == STATUS_NO_MEMORY || options->once)
            return st;
        int64_t now = clock_now_ns();
        double waited_s = clock_seconds(now - start_ns);
        double total_s = (double)options->connect_timeout_ms * 1e-3;
        char why[STORE_WHY_BYTES * 2], way[SOCKET_ROUTE_BYTES + 8];
        snprintf(why, sizeof why, "%s", status_text());
        if (now >= deadline_ns || now >= line_ns)
            describe_way(options->host, way, sizeof way);
        if (now >= deadline_ns)
            return FAIL(STATUS_TIMEOUT, "%s%sno store within %.3g s: %s%s; %s", describe, colon,
                        total_s, why, way, hint_of(st));
        if (now >= line_ns) {
            LOG_I("%s%swaiting for the store at %s%s (%s) ... %.0f s of %.0f s", describe, colon,
                  why, way, hint_of(st), waited_s, total_s);
            line_ns = now + (int64_t)NEXT_LINE_MS * 1000000;
        }
        if (pause_ms > LAST_RETRY_MS)
            pause_ms = LAST_RETRY_MS;
        int left_ms = clock_remaining_ms(deadline_ns);
        clock_sleep_ms(pause_ms < left_ms ? pause_ms : left_ms);
    }
}

status store_create(const store_options *options, store **out)
{
    status st = STATUS_OK;
    const char *prefix = options->prefix != NULL ? options->prefix : "";
    store *client = calloc(1, sizeof *client);
    if (client == NULL)
        return FAIL(STATUS_NO_MEMORY, "a store client");
    *client = (store){.fd = -1, .timeout_ms = options->timeout_ms, .breaker = options->breaker};
    pthread_mutex_init(&client->lock, NULL);
    if (strlen(prefix) >= STORE_KEY_BYTES) {
        st = FAIL(STATUS_INVALID, "a store's prefix of %zu bytes", strlen(prefix));
        goto out;
    }
    const char *shape = strchr(options->host, ':') != NULL ? "[" : "";
    if (asprintf(&client->prefix, "/%s", prefix) < 0)
        client->prefix = NULL;
    if (asprintf(&client->where, "%s%s%s:%d", shape, options->host, shape[0] != '\0' ? "]" : "",
                 options->port) < 0)
        client->where = NULL;
    if (client->prefix == NULL || client->where == NULL) {
        st = FAIL(STATUS_NO_MEMORY, "a store client");
        goto out;
    }
    st = connect_patiently(client, options);
    if (st != STATUS_OK)
        goto out;
    *out = client;
    client = NULL; /* handed over */

out:
    store_destroy(client);
    return st;
}

void store_destroy(store *client)
{
    if (client == NULL)
        return;
    store_exchange_disconnect(client);
    pthread_mutex_destroy(&client->lock);
    free(client->prefix);
    free(client->where);
    free(client);
}

/* WAIT, and CANCEL_WAIT if the time is up: then the connection stays usable. */
static void wait_for_key(store_exchange *x)
{
    store_exchange_put_u8(x, STORE_WAIT);
    store_exchange_put_u64(x, 1);
    store_exchange_put_key(x);
    store_exchange_send(x);
    if (x->st != STATUS_OK)
        return;
    uint8_t reply = store_exchange_receive_u8(x);
    if (x->st == STATUS_TIMEOUT) {
        x->deadline_ns = clock_deadline_ns(CANCEL_MS);
        x->st = STATUS_OK;
        store_exchange_put_u8(x, STORE_CANCEL_WAIT);
        store_exchange_send(x);
        reply = store_exchange_receive_u8(x);
        if (x->st == STATUS_OK && reply == STORE_WAIT_CANCELED) {
            x->sent = false;
            x->st = FAIL(STATUS_TIMEOUT, "nobody set \"%s\" within %g s", x->key,
                         (double)x->timeout_ms * 1e-3);
            return;
        }
        /* The key came just before the cancellation, and both are answered. */
        if (x->st == STATUS_OK && store_exchange_receive_u8(x) != STORE_WAIT_CANCELED &&
            x->st == STATUS_OK)
            x->st = FAIL(STATUS_PEER, "a wait was not canceled");
    }
    if (x->st == STATUS_OK && reply != STORE_WAIT_ENDED)
        x->st = FAIL(STATUS_PEER, "WAIT was answered %d", reply);
}

status store_set(store *client, const char *key, const void *value, size_t size_bytes)
{
    store_exchange x;
    store_exchange_begin(&x, client, key, client->timeout_ms);
    store_exchange_put_u8(&x, STORE_SET);
    store_exchange_put_key(&x);
    store_exchange_put_value(&x, value, size_bytes);
    store_exchange_send(&x);
    return store_exchange_end(&x);
}

status store_get(store *client, const char *key, void **value, size_t *size_bytes)
{
    store_exchange x;
    char *received = NULL;
    size_t size = 0;
    store_exchange_begin(&x, client, key, client->timeout_ms);
    wait_for_key(&x);
    store_exchange_put_u8(&x, STORE_GET);
    store_exchange_put_key(&x);
    store_exchange_send(&x);
    store_exchange_receive_value(&x, &received, &size);
    TRY(store_exchange_end(&x));
    *value = received;
    *size_bytes = size;
    return STATUS_OK;
}

status store_try_get(store *client, const char *key, char **text)
{
    bool there = false;
    void *value = NULL;
    size_t size_bytes = 0;
    TRY(store_check(client, key, &there));
    if (there)
        TRY(store_get(client, key, &value, &size_bytes));
    *text = value;
    return STATUS_OK;
}

status store_get_text(store *client, const char *key, int64_t deadline_ns, char *text,
                      size_t size_bytes)
{
    void *value = NULL;
    size_t value_bytes = 0;
    TRY(store_wait(client, key, clock_remaining_ms(deadline_ns)));
    TRY(store_get(client, key, &value, &value_bytes));
    status st = STATUS_OK;
    if (value_bytes >= size_bytes)
        st = FAIL(STATUS_PEER, "key %s holds %zu bytes, fewer than %zu are expected", key,
                  value_bytes, size_bytes);
    else
        memcpy(text, value, value_bytes + 1);
    free(value);
    return st;
}

status store_add(store *client, const char *key, int64_t amount, int64_t *result)
{
    store_exchange x;
    store_exchange_begin(&x, client, key, client->timeout_ms);
    store_exchange_put_u8(&x, STORE_ADD);
    store_exchange_put_key(&x);
    store_exchange_put_u64(&x, (uint64_t)amount);
    store_exchange_send(&x);
    int64_t sum = (int64_t)store_exchange_receive_u64(&x);
    TRY(store_exchange_end(&x));
    *result = sum;
    return STATUS_OK;
}

status store_check(store *client, const char *key, bool *there)
{
    store_exchange x;
    store_exchange_begin(&x, client, key, client->timeout_ms);
    store_exchange_put_u8(&x, STORE_CHECK);
    store_exchange_put_u64(&x, 1);
    store_exchange_put_key(&x);
    store_exchange_send(&x);
    uint8_t reply = store_exchange_receive_u8(&x);
    if (x.st == STATUS_OK && reply > STORE_CHECK_NOT_READY)
        x.st = FAIL(STATUS_PEER, "CHECK was answered %d", reply);
    TRY(store_exchange_end(&x));
    *there = reply == STORE_CHECK_READY;
    return STATUS_OK;
}

status store_wait(store *client, const char *key, int64_t timeout_ms)
{
    store_exchange x;
    store_exchange_begin(&x, client, key, timeout_ms);
    wait_for_key(&x);
    return store_exchange_end(&x);
}

status store_compare_set(store *client, const char *key, const char *expected, const char *desired,
                         void **value, size_t *size_bytes)
{
    store_exchange x;
    char *received = NULL;
    size_t size = 0;
    store_exchange_begin(&x, client, key, client->timeout_ms);
    store_exchange_put_u8(&x, STORE_COMPARE_SET);
    store_exchange_put_key(&x);
    store_exchange_put_value(&x, expected, strlen(expected));
    store_exchange_put_value(&x, desired, strlen(desired));
    store_exchange_send(&x);
    store_exchange_receive_value(&x, &received, &size);
    TRY(store_exchange_end(&x));
    *value = received;
    *size_bytes = size;
    return STATUS_OK;
}

status store_delete(store *client, const char *key, bool *deleted)
{
    store_exchange x;
    store_exchange_begin(&x, client, key, client->timeout_ms);
    store_exchange_put_u8(&x, STORE_DELETE_KEY);
    store_exchange_put_key(&x);
    store_exchange_send(&x);
    int64_t n = (int64_t)store_exchange_receive_u64(&x);
    TRY(store_exchange_end(&x));
    *deleted = n == 1;
    return STATUS_OK;
}

status store_join(store *client)
{
    static const char key[] = "init/";
    store_exchange x;
    store_exchange_begin(&x, client, key, client->timeout_ms);
    store_exchange_put_u8(&x, STORE_ADD);
    store_exchange_put_u64(&x, strlen(key));
    store_exchange_put(&x, key, strlen(key));
    store_exchange_put_u64(&x, 1);
    store_exchange_send(&x);
    (void)store_exchange_receive_u64(&x);
    return store_exchange_end(&x);
}

status store_num_keys(store *client, int64_t *count)
{
    store_exchange x;
    store_exchange_begin(&x, client, "the number of keys", client->timeout_ms);
    store_exchange_put_u8(&x, STORE_GETNUMKEYS);
    store_exchange_send(&x);
    int64_t n = (int64_t)store_exchange_receive_u64(&x);
    TRY(store_exchange_end(&x));
    *count = n;
    return STATUS_OK;
}
