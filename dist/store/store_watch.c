#include "dist/store/store_watch.h"

#include "base/clock.h"
#include "dist/store/store_exchange.h"
#include "dist/store/store_wire.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum {
    ANSWER_BYTES = 64 << 20, /* more is nonsense */
    KEY_BYTES = 4 * 8,       /* of a key in an answer, at least */
    CANCEL_MS = 2000,        /* a server that lives answers a cancellation by then */
};

status store_put(store *client, const char *key, const store_put_options *how, int64_t *revision)
{
    uint8_t flags[4];
    store_exchange x;
    store_wire_put_u32(flags, how->goes_with_connection ? STORE_GOES_WITH_CONNECTION : 0);
    store_exchange_begin(&x, client, key, client->timeout_ms);
    store_exchange_put_u8(&x, STORE_PUT);
    store_exchange_put_key(&x);
    store_exchange_put_value(&x, how->value, strlen(how->value));
    store_exchange_put_u64(&x, (uint64_t)how->expected);
    store_exchange_put_u64(&x, (uint64_t)how->ttl_ms);
    store_exchange_put(&x, flags, sizeof flags);
    store_exchange_send(&x);
    int64_t set = (int64_t)store_exchange_receive_u64(&x);
    TRY(store_exchange_end(&x));
    client->watches = true;
    *revision = set;
    return STATUS_OK;
}

bool store_watches(const store *client)
{
    return client->watches;
}

static status ask(store *client, store_opcode opcode, const char *key, bool *there)
{
    store_exchange x;
    store_exchange_begin(&x, client, key, client->timeout_ms);
    store_exchange_put_u8(&x, (uint8_t)opcode);
    store_exchange_put_key(&x);
    store_exchange_send(&x);
    uint8_t answer = store_exchange_receive_u8(&x);
    TRY(store_exchange_end(&x));
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

/* Until the answer begins to come, or the server is to be told to wait no more. */
static bool await_answer(const store_exchange *x, int wake_fd)
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
    return STATUS_OK;
}

static void receive_keys(store_exchange *x, store_watch_answer *out)
{
    uint64_t size = store_exchange_receive_u64(x);
    if (x->st == STATUS_OK && size > ANSWER_BYTES)
        x->st = FAIL(STATUS_PEER, "WATCH was answered with %" PRIu64 " bytes", size);
    if (x->st != STATUS_OK)
        return;
    out->memory = malloc((size_t)size + 1);
    if (out->memory == NULL)
        x->st = FAIL(STATUS_NO_MEMORY, "an answer of %" PRIu64 " bytes", size);
    store_exchange_receive(x, out->memory, (size_t)size);
    if (x->st == STATUS_OK)
        x->st = parse(out->memory, (size_t)size, strlen(x->client->prefix), out);
}

static void receive_answer(store_exchange *x, store_watch_answer *out, uint8_t *kind)
{
    *kind = store_exchange_receive_u8(x);
    if (x->st == STATUS_OK && *kind > STORE_WATCH_SAME)
        x->st = FAIL(STATUS_PEER, "WATCH was answered %d", *kind);
    if (x->st == STATUS_OK && *kind == STORE_WAIT_ENDED)
        receive_keys(x, out);
}

/* The watch's own answer may have been under way. */
static void cancel(store_exchange *x, store_watch_answer *out)
{
    uint8_t kind;
    x->deadline_ns = clock_deadline_ns(CANCEL_MS);
    store_exchange_put_u8(x, STORE_CANCEL_WAIT);
    store_exchange_send(x);
    receive_answer(x, out, &kind);
    if (x->st == STATUS_OK && kind != STORE_WAIT_CANCELED &&
        store_exchange_receive_u8(x) != STORE_WAIT_CANCELED && x->st == STATUS_OK)
        x->st = FAIL(STATUS_PEER, "a watch was not canceled");
}

status store_watch(store *client, const store_watch_options *how, store_watch_answer *out)
{
    store_exchange x;
    store_watch_answer answer = {0};
    uint8_t kind;
    store_exchange_begin(&x, client, how->prefix, how->wait_ms + client->timeout_ms);
    store_exchange_put_u8(&x, STORE_WATCH);
    store_exchange_put_key(&x);
    store_exchange_put_u64(&x, (uint64_t)how->after);
    store_exchange_put_u64(&x, (uint64_t)how->wait_ms);
    store_exchange_send(&x);
    if (x.st == STATUS_OK && how->wait_ms > 0 && !await_answer(&x, how->wake_fd))
        cancel(&x, &answer);
    else
        receive_answer(&x, &answer, &kind);
    status st = store_exchange_end(&x);
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
