#include "dist/store/store.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "dist/net/socket.h"
#include "dist/store/store_wire.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One request of a client, and its answer. */

enum { STORE_WHY_BYTES = 256 };

struct store {
    pthread_mutex_t lock;
    int fd; /* -1 once an answer was lost: which answer came next would not be known */
    int64_t timeout_ms;
    bool watches;            /* the server has answered a store_put: it has watched keys */
    char *prefix;            /* "/", as torch's own client begins every key, and the caller's */
    char *where;             /* "host:port", for messages */
    socket_breaker *breaker; /* borrowed; NULL */
    char why[STORE_WHY_BYTES];
};

/* It holds the client's lock from begin() to end(). The first thing that goes wrong is kept in
 * `st`; what follows does nothing then. */
typedef struct exchange {
    store *client;
    const char *key;
    int64_t timeout_ms, deadline_ns;
    byte_buffer out;
    status st;
    bool sent; /* from here on a failure leaves the connection of no use */
} exchange;

static void put(exchange *x, const void *data, size_t size_bytes)
{
    if (x->st == STATUS_OK)
        x->st = byte_buffer_append(&x->out, data, size_bytes);
}

static void put_u8(exchange *x, uint8_t value)
{
    put(x, &value, 1);
}

static void put_u64(exchange *x, uint64_t value)
{
    uint8_t bytes[8];
    store_wire_put_u64(bytes, value);
    put(x, bytes, sizeof bytes);
}

static void put_key(exchange *x)
{
    size_t prefix_size = strlen(x->client->prefix), key_size = strlen(x->key);
    if (x->st == STATUS_OK && key_size > STORE_KEY_BYTES - prefix_size)
        x->st = FAIL(STATUS_INVALID, "a store key of %zu bytes: at most %d are allowed",
                     prefix_size + key_size, STORE_KEY_BYTES);
    put_u64(x, prefix_size + key_size);
    put(x, x->client->prefix, prefix_size);
    put(x, x->key, key_size);
}

static void put_value(exchange *x, const void *data, size_t size_bytes)
{
    if (x->st == STATUS_OK && size_bytes > STORE_VALUE_BYTES)
        x->st = FAIL(STATUS_INVALID, "%s: a value of %zu bytes: at most %d are allowed", x->key,
                     size_bytes, STORE_VALUE_BYTES);
    put_u64(x, size_bytes);
    put(x, data, size_bytes);
}

static void begin(exchange *x, store *client, const char *key, int64_t timeout_ms)
{
    pthread_mutex_lock(&client->lock);
    *x = (exchange){.client = client,
                    .key = key,
                    .timeout_ms = timeout_ms,
                    .deadline_ns = clock_deadline_ns(timeout_ms)};
    if (client->fd < 0)
        x->st = FAIL(STATUS_PEER, "the connection to the store at %s was lost before: %s",
                     client->where, client->why);
}

static void send_out(exchange *x)
{
    if (x->st == STATUS_OK) {
        x->sent = true;
        x->st = socket_send(x->client->fd, x->out.data, x->out.size, x->deadline_ns);
    }
    byte_buffer_consume(&x->out, x->out.size);
}

static void receive(exchange *x, void *data, size_t size_bytes)
{
    if (x->st == STATUS_OK)
        x->st = socket_receive(x->client->fd, data, size_bytes, x->deadline_ns);
}

static uint8_t receive_u8(exchange *x)
{
    uint8_t value = 0;
    receive(x, &value, 1);
    return value;
}

static uint64_t receive_u64(exchange *x)
{
    uint8_t bytes[8] = {0};
    receive(x, bytes, sizeof bytes);
    return store_wire_u64(bytes);
}

/* *value is the caller's, with a zero byte after it; NULL unless all went well. */
static void receive_value(exchange *x, char **value, size_t *size_bytes)
{
    *value = NULL;
    uint64_t size = receive_u64(x);
    if (x->st == STATUS_OK && size > STORE_VALUE_BYTES)
        x->st = FAIL(STATUS_PEER, "a value of %llu bytes: at most %d are allowed",
                     (unsigned long long)size, STORE_VALUE_BYTES);
    if (x->st != STATUS_OK)
        return;
    char *memory = malloc((size_t)size + 1);
    if (memory == NULL) {
        x->st = FAIL(STATUS_NO_MEMORY, "a value of %llu bytes", (unsigned long long)size);
        return;
    }
    receive(x, memory, (size_t)size);
    if (x->st != STATUS_OK) {
        free(memory);
        return;
    }
    memory[size] = '\0';
    *value = memory;
    *size_bytes = (size_t)size;
}

/* Also if there is no connection. */
static void disconnect(store *client)
{
    if (client->fd < 0)
        return;
    socket_breaker_set(client->breaker, -1);
    close(client->fd);
    client->fd = -1;
}

/* After this the connection is of no use. */
static status lose(store *client, status st)
{
    snprintf(client->why, sizeof client->why, "%s", status_text());
    disconnect(client);
    return status_context(st, "store at %s", client->where);
}

static status end(exchange *x)
{
    store *client = x->client;
    status st = x->st;
    if (st != STATUS_OK && x->sent)
        st = lose(client, status_context(st, "%s", x->key));
    else if (st != STATUS_OK)
        st = status_context(st, "store at %s", client->where);
    byte_buffer_free(&x->out);
    pthread_mutex_unlock(&client->lock);
    return st;
}

/* A request for a key: what follows it is put next. */
static void begin_request(exchange *x, store *client, store_opcode opcode, const char *key)
{
    begin(x, client, key, client->timeout_ms);
    put_u8(x, (uint8_t)opcode);
    put_key(x);
}

/* Sends the request, and ends the exchange with its answer. */
static status answer_u64(exchange *x, int64_t *out)
{
    send_out(x);
    int64_t answer = (int64_t)receive_u64(x);
    TRY(end(x));
    *out = answer;
    return STATUS_OK;
}

static status answer_value(exchange *x, void **value, size_t *size_bytes)
{
    char *received = NULL;
    size_t size = 0;
    send_out(x);
    receive_value(x, &received, &size);
    TRY(end(x));
    *value = received;
    *size_bytes = size;
    return STATUS_OK;
}

/* The client. */

enum {
    FIRST_RETRY_MS = 10,
    LAST_RETRY_MS = 500,
    FIRST_LINE_MS = 3000, /* until the first line about waiting */
    NEXT_LINE_MS = 5000,  /* until each line after it */
    ATTEMPT_MS = 5000,    /* one attempt to connect and to be greeted */
    STRANGER_BYTES = 40,  /* shown of what answers and is no store */
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
    disconnect(client);
    pthread_mutex_destroy(&client->lock);
    free(client->prefix);
    free(client->where);
    free(client);
}

/* WAIT, and CANCEL_WAIT if the time is up: then the connection stays usable. */
static void wait_for_key(exchange *x)
{
    put_u8(x, STORE_WAIT);
    put_u64(x, 1);
    put_key(x);
    send_out(x);
    if (x->st != STATUS_OK)
        return;
    uint8_t reply = receive_u8(x);
    if (x->st == STATUS_TIMEOUT) {
        x->deadline_ns = clock_deadline_ns(CANCEL_MS);
        x->st = STATUS_OK;
        put_u8(x, STORE_CANCEL_WAIT);
        send_out(x);
        reply = receive_u8(x);
        if (x->st == STATUS_OK && reply == STORE_WAIT_CANCELED) {
            x->sent = false;
            x->st = FAIL(STATUS_TIMEOUT, "nobody set \"%s\" within %g s", x->key,
                         (double)x->timeout_ms * 1e-3);
            return;
        }
        /* The key came just before the cancellation, and both are answered. */
        if (x->st == STATUS_OK && receive_u8(x) != STORE_WAIT_CANCELED && x->st == STATUS_OK)
            x->st = FAIL(STATUS_PEER, "a wait was not canceled");
    }
    if (x->st == STATUS_OK && reply != STORE_WAIT_ENDED)
        x->st = FAIL(STATUS_PEER, "WAIT was answered %d", reply);
}

status store_set(store *client, const char *key, const void *value, size_t size_bytes)
{
    exchange x;
    begin_request(&x, client, STORE_SET, key);
    put_value(&x, value, size_bytes);
    send_out(&x);
    return end(&x);
}

status store_get(store *client, const char *key, void **value, size_t *size_bytes)
{
    exchange x;
    begin(&x, client, key, client->timeout_ms);
    wait_for_key(&x);
    put_u8(&x, STORE_GET);
    put_key(&x);
    return answer_value(&x, value, size_bytes);
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
    exchange x;
    begin_request(&x, client, STORE_ADD, key);
    put_u64(&x, (uint64_t)amount);
    return answer_u64(&x, result);
}

status store_check(store *client, const char *key, bool *there)
{
    exchange x;
    begin(&x, client, key, client->timeout_ms);
    put_u8(&x, STORE_CHECK);
    put_u64(&x, 1);
    put_key(&x);
    send_out(&x);
    uint8_t reply = receive_u8(&x);
    if (x.st == STATUS_OK && reply > STORE_CHECK_NOT_READY)
        x.st = FAIL(STATUS_PEER, "CHECK was answered %d", reply);
    TRY(end(&x));
    *there = reply == STORE_CHECK_READY;
    return STATUS_OK;
}

status store_wait(store *client, const char *key, int64_t timeout_ms)
{
    exchange x;
    begin(&x, client, key, timeout_ms);
    wait_for_key(&x);
    return end(&x);
}

status store_compare_set(store *client, const char *key, const char *expected, const char *desired,
                         void **value, size_t *size_bytes)
{
    exchange x;
    begin_request(&x, client, STORE_COMPARE_SET, key);
    put_value(&x, expected, strlen(expected));
    put_value(&x, desired, strlen(desired));
    return answer_value(&x, value, size_bytes);
}

status store_delete(store *client, const char *key, bool *deleted)
{
    exchange x;
    int64_t n = 0;
    begin_request(&x, client, STORE_DELETE_KEY, key);
    TRY(answer_u64(&x, &n));
    *deleted = n == 1;
    return STATUS_OK;
}

status store_join(store *client)
{
    static const char key[] = "init/";
    exchange x;
    int64_t come;
    begin(&x, client, key, client->timeout_ms);
    put_u8(&x, STORE_ADD);
    put_u64(&x, strlen(key));
    put(&x, key, strlen(key));
    put_u64(&x, 1);
    return answer_u64(&x, &come);
}

status store_num_keys(store *client, int64_t *count)
{
    exchange x;
    begin(&x, client, "the number of keys", client->timeout_ms);
    put_u8(&x, STORE_GETNUMKEYS);
    return answer_u64(&x, count);
}

/* Watched keys. */

enum {
    ANSWER_BYTES = 64 << 20, /* more is nonsense */
    KEY_BYTES = 4 * 8,       /* a key in an answer has at least */
};

status store_put(store *client, const char *key, const store_put_options *how, int64_t *revision)
{
    uint8_t flags[4];
    exchange x;
    store_wire_put_u32(flags, how->goes_with_connection ? STORE_GOES_WITH_CONNECTION : 0);
    begin_request(&x, client, STORE_PUT, key);
    put_value(&x, how->value, strlen(how->value));
    put_u64(&x, (uint64_t)how->expected);
    put_u64(&x, (uint64_t)how->ttl_ms);
    put(&x, flags, sizeof flags);
    TRY(answer_u64(&x, revision));
    client->watches = true;
    return STATUS_OK;
}

bool store_watches(const store *client)
{
    return client->watches;
}

static status ask(store *client, store_opcode opcode, const char *key, bool *there)
{
    exchange x;
    begin_request(&x, client, opcode, key);
    send_out(&x);
    uint8_t answer = receive_u8(&x);
    TRY(end(&x));
    *there = answer == 1;
    return STATUS_OK;
}

status store_renew(store *client, const char *key, bool *there)
{
    return ask(client, STORE_RENEW, key, there);
}

status store_remove(store *client, const char *key, bool *there)
{
    return ask(client, STORE_REMOVE, key, there);
}

/* Until the answer begins to come, or the server is to wait no more. */
static bool await_answer(const exchange *x, int wake_fd)
{
    struct pollfd fds[2] = {{.fd = x->client->fd, .events = POLLIN},
                            {.fd = wake_fd > 0 ? wake_fd : -1, .events = POLLIN}};
    int n;
    do {
        n = poll(fds, 2, clock_remaining_ms(x->deadline_ns));
    } while (n < 0 && errno == EINTR);
    return n > 0 && fds[0].revents != 0;
}

/* The number at *at of memory[0 .. size); moves *at. */
static bool take_u64(const uint8_t *memory, size_t size, size_t *at, uint64_t *out)
{
    if (size - *at < 8)
        return false;
    *out = store_wire_take_u64(memory, at);
    return true;
}

static bool take_text(uint8_t *memory, size_t size, size_t *at, char **text, size_t *text_bytes)
{
    uint64_t n;
    if (!take_u64(memory, size, at, &n) || n > size - *at)
        return false;
    *text = (char *)memory + *at;
    *text_bytes = (size_t)n;
    *at += (size_t)n;
    return true;
}

/* Texts stay where they are. A zero byte goes after each, over a number that was read before. */
static bool take_key(uint8_t *memory, size_t size, size_t *at, size_t prefix_bytes,
                     store_watch_key *out)
{
    char *key, *value;
    size_t key_bytes, value_bytes;
    uint64_t created, set;
    if (!take_text(memory, size, at, &key, &key_bytes) ||
        !take_text(memory, size, at, &value, &value_bytes) ||
        !take_u64(memory, size, at, &created) || !take_u64(memory, size, at, &set) ||
        key_bytes < prefix_bytes)
        return false;
    key[key_bytes] = '\0';
    value[value_bytes] = '\0';
    *out = (store_watch_key){.key = key + prefix_bytes,
                             .value = value,
                             .value_bytes = value_bytes,
                             .created = (int64_t)created,
                             .set = (int64_t)set};
    return true;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const store_watch_key *)a)->key, ((const store_watch_key *)b)->key);
}

static status parse(uint8_t *memory, size_t size, size_t prefix_bytes, store_watch_answer *out)
{
    size_t at = 0;
    uint64_t revision, n;
    if (!take_u64(memory, size, &at, &revision) || !take_u64(memory, size, &at, &n) ||
        n > size / KEY_BYTES)
        return FAIL(STATUS_PEER, "WATCH was answered with nonsense");
    out->revision = (int64_t)revision;
    out->keys = calloc((size_t)n + 1, sizeof *out->keys);
    if (out->keys == NULL)
        return FAIL(STATUS_NO_MEMORY, "%" PRIu64 " watched keys", n);
    for (out->n = 0; out->n < n; out->n++)
        if (!take_key(memory, size, &at, prefix_bytes, &out->keys[out->n]))
            return FAIL(STATUS_PEER, "WATCH was answered with half a key");
    qsort(out->keys, out->n, sizeof *out->keys, by_key);
    return STATUS_OK;
}

static void receive_keys(exchange *x, store_watch_answer *out)
{
    uint64_t size = receive_u64(x);
    if (x->st == STATUS_OK && size > ANSWER_BYTES)
        x->st = FAIL(STATUS_PEER, "WATCH was answered with %" PRIu64 " bytes", size);
    if (x->st != STATUS_OK)
        return;
    out->memory = malloc((size_t)size + 1);
    if (out->memory == NULL)
        x->st = FAIL(STATUS_NO_MEMORY, "an answer of %" PRIu64 " bytes", size);
    receive(x, out->memory, (size_t)size);
    if (x->st == STATUS_OK)
        x->st = parse(out->memory, (size_t)size, strlen(x->client->prefix), out);
}

static void receive_answer(exchange *x, store_watch_answer *out, uint8_t *kind)
{
    *kind = receive_u8(x);
    if (x->st == STATUS_OK && *kind > STORE_WATCH_SAME)
        x->st = FAIL(STATUS_PEER, "WATCH was answered %d", *kind);
    if (x->st == STATUS_OK && *kind == STORE_WAIT_ENDED)
        receive_keys(x, out);
}

/* The watch's own answer may have been under way. */
static void cancel(exchange *x, store_watch_answer *out)
{
    uint8_t kind;
    x->deadline_ns = clock_deadline_ns(CANCEL_MS);
    put_u8(x, STORE_CANCEL_WAIT);
    send_out(x);
    receive_answer(x, out, &kind);
    if (x->st == STATUS_OK && kind != STORE_WAIT_CANCELED && receive_u8(x) != STORE_WAIT_CANCELED &&
        x->st == STATUS_OK)
        x->st = FAIL(STATUS_PEER, "a watch was not canceled");
}

status store_watch(store *client, const store_watch_options *how, store_watch_answer *out)
{
    exchange x;
    store_watch_answer answer = {0};
    uint8_t kind;
    begin(&x, client, how->prefix, how->wait_ms + client->timeout_ms);
    put_u8(&x, STORE_WATCH);
    put_key(&x);
    put_u64(&x, (uint64_t)how->after);
    put_u64(&x, (uint64_t)how->wait_ms);
    send_out(&x);
    if (x.st == STATUS_OK && how->wait_ms > 0 && !await_answer(&x, how->wake_fd))
        cancel(&x, &answer);
    else
        receive_answer(&x, &answer, &kind);
    status st = end(&x);
    if (st != STATUS_OK)
        store_watch_free(&answer);
    else
        *out = answer;
    return st;
}

void store_watch_free(store_watch_answer *answer)
{
    free(answer->keys);
    free(answer->memory);
    *answer = (store_watch_answer){0};
}
