#include "dist/store/store_exchange.h"

#include "base/clock.h"
#include "dist/net/socket.h"
#include "dist/store/store_wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void store_exchange_put(store_exchange *x, const void *data, size_t size_bytes)
{
    if (x->st == STATUS_OK)
        x->st = byte_buffer_append(&x->out, data, size_bytes);
}

void store_exchange_put_u8(store_exchange *x, uint8_t value)
{
    store_exchange_put(x, &value, 1);
}

void store_exchange_put_u64(store_exchange *x, uint64_t value)
{
    uint8_t bytes[8];
    store_wire_put_u64(bytes, value);
    store_exchange_put(x, bytes, sizeof bytes);
}

void store_exchange_put_key(store_exchange *x)
{
    size_t prefix_size = strlen(x->client->prefix), key_size = strlen(x->key);
    if (x->st == STATUS_OK && key_size > STORE_KEY_BYTES - prefix_size)
        x->st = FAIL(STATUS_INVALID, "a store key of %zu bytes: at most %d are allowed",
                     prefix_size + key_size, STORE_KEY_BYTES);
    store_exchange_put_u64(x, prefix_size + key_size);
    store_exchange_put(x, x->client->prefix, prefix_size);
    store_exchange_put(x, x->key, key_size);
}

void store_exchange_put_value(store_exchange *x, const void *data, size_t size_bytes)
{
    if (x->st == STATUS_OK && size_bytes > STORE_VALUE_BYTES)
        x->st = FAIL(STATUS_INVALID, "%s: a value of %zu bytes: at most %d are allowed", x->key,
                     size_bytes, STORE_VALUE_BYTES);
    store_exchange_put_u64(x, size_bytes);
    store_exchange_put(x, data, size_bytes);
}

void store_exchange_begin(store_exchange *x, store *client, const char *key, int64_t timeout_ms)
{
    pthread_mutex_lock(&client->lock);
    *x = (store_exchange){.client = client,
                          .key = key,
                          .timeout_ms = timeout_ms,
                          .deadline_ns = clock_deadline_ns(timeout_ms)};
    if (client->fd < 0)
        x->st = FAIL(STATUS_PEER, "the connection to the store at %s was lost before: %s",
                     client->where, client->why);
}

void store_exchange_send(store_exchange *x)
{
    if (x->st == STATUS_OK) {
        x->sent = true;
        x->st = socket_send(x->client->fd, x->out.data, x->out.size, x->deadline_ns);
    }
    byte_buffer_consume(&x->out, x->out.size);
}

void store_exchange_receive(store_exchange *x, void *data, size_t size_bytes)
{
    if (x->st == STATUS_OK)
        x->st = socket_receive(x->client->fd, data, size_bytes, x->deadline_ns);
}

uint8_t store_exchange_receive_u8(store_exchange *x)
{
    uint8_t value = 0;
    store_exchange_receive(x, &value, 1);
    return value;
}

uint64_t store_exchange_receive_u64(store_exchange *x)
{
    uint8_t bytes[8] = {0};
    store_exchange_receive(x, bytes, sizeof bytes);
    return store_wire_u64(bytes);
}

void store_exchange_receive_value(store_exchange *x, char **value, size_t *size_bytes)
{
    *value = NULL;
    uint64_t size = store_exchange_receive_u64(x);
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
    store_exchange_receive(x, memory, (size_t)size);
    if (x->st != STATUS_OK) {
        free(memory);
        return;
    }
    memory[size] = '\0';
    *value = memory;
    *size_bytes = (size_t)size;
}

void store_exchange_disconnect(store *client)
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
    store_exchange_disconnect(client);
    return status_context(st, "store at %s", client->where);
}

status store_exchange_end(store_exchange *x)
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
