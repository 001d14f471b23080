#include "dist/elastic/etcd.h"

#include "base/digest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_BYTES = 24 };

/* etcd writes 64 bits as text, and leaves out what is 0. */
static bool read_number(const json_t *object, const char *name, int64_t *out)
{
    const json_t *value = json_object_get(object, name);
    const char *text = json_string_value(value);
    char *end = NULL;
    *out = 0;
    if (value == NULL)
        return true;
    if (text == NULL || text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static json_t *number(int64_t value)
{
    char text[NUMBER_BYTES];
    snprintf(text, sizeof text, "%" PRId64, value);
    return json_string(text);
}

static json_t *bytes(const char *text, size_t length)
{
    char *letters = malloc(BASE64_TEXT_BYTES(length));
    if (letters == NULL)
        return NULL;
    base64_write(text, length, letters);
    json_t *value = json_string(letters);
    free(letters);
    return value;
}

static json_t *text_bytes(const char *text)
{
    return bytes(text, strlen(text));
}

/* The first key after all that begin with `prefix`: its last letter is one higher. */
static json_t *end_of(const char *prefix)
{
    size_t length = strlen(prefix);
    char *end = strdup(prefix);
    if (end == NULL)
        return NULL;
    end[length - 1]++;
    json_t *value = bytes(end, length);
    free(end);
    return value;
}

/* Bytes that were put, and a zero after them. STATUS_INVALID, without a message: nonsense. */
static status read_bytes(const json_t *object, const char *name, char **out, size_t *n)
{
    const json_t *value = json_object_get(object, name);
    const char *letters = value != NULL ? json_string_value(value) : ""; /* of 0 bytes: left out */
    if (letters == NULL)
        return STATUS_INVALID;
    char *read = malloc(strlen(letters) + 1);
    if (read == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu letters from etcd", strlen(letters));
    if (!base64_read(letters, read, n)) {
        free(read);
        return STATUS_INVALID;
    }
    read[*n] = '\0';
    *out = read;
    return STATUS_OK;
}

static status read_pair(const json_t *object, etcd_pair *out)
{
    size_t key_bytes = 0;
    TRY(read_bytes(object, "key", &out->key, &key_bytes));
    TRY(read_bytes(object, "value", &out->value, &out->value_bytes));
    if (memchr(out->key, '\0', key_bytes) != NULL)
        out->key[0] = '\0';
    bool is_whole = read_number(object, "create_revision", &out->created) &&
                    read_number(object, "mod_revision", &out->modified);
    return is_whole ? STATUS_OK : STATUS_INVALID;
}

void etcd_pairs_free(etcd_pairs *pairs)
{
    for (int i = 0; i < pairs->n; i++) {
        free(pairs->pairs[i].key);
        free(pairs->pairs[i].value);
    }
    free(pairs->pairs);
    *pairs = (etcd_pairs){0};
}

static status read_pairs(const json_t *answer, etcd_pairs *out)
{
    const json_t *list = json_object_get(answer, "kvs");
    size_t n = json_array_size(list);
    status st = STATUS_OK;
    if (!read_number(json_object_get(answer, "header"), "revision", &out->revision) ||
        out->revision == 0)
        return STATUS_INVALID;
    out->pairs = calloc(n > 0 ? n : 1, sizeof *out->pairs);
    if (out->pairs == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu keys of etcd", n);
    for (size_t i = 0; st == STATUS_OK && i < n; i++) {
        out->n++;
        st = read_pair(json_array_get(list, i), &out->pairs[i]);
    }
    return st;
}

status etcd_list(etcd_gateway *gateway, const char *prefix, etcd_pairs *out)
{
    static const char path[] = "/v3/kv/range";
    json_t *answer = NULL;
    etcd_pairs pairs = {0};
    TRY(etcd_gateway_call(
        gateway, path,
        json_pack("{s:o,s:o}", "key", text_bytes(prefix), "range_end", end_of(prefix)), &answer));
    status st = read_pairs(answer, &pairs);
    json_decref(answer);
    if (st == STATUS_OK)
        *out = pairs;
    else
        etcd_pairs_free(&pairs);
    return st == STATUS_INVALID ? etcd_gateway_nonsense(gateway, path) : st;
}

/* A change, or the news that the watch is over: its changes are forgotten. */
static bool is_change(const json_t *message)
{
    return json_array_size(json_object_get(message, "events")) > 0 ||
           json_is_true(json_object_get(message, "canceled"));
}

status etcd_await_change(etcd_gateway *gateway, const char *prefix, int64_t revision,
                         int64_t wait_ms, int wake_fd)
{
    json_t *request = json_pack("{s:{s:o,s:o,s:o}}", "create_request", "key", text_bytes(prefix),
                                "range_end", end_of(prefix), "start_revision", number(revision));
    const etcd_stream watch = {"/v3/watch", wait_ms, wake_fd, is_change};
    return etcd_gateway_follow(gateway, request, &watch);
}

status etcd_put(etcd_gateway *gateway, const etcd_value *what, etcd_put_result *result)
{
    json_t *answer = NULL;
    json_t *put = json_pack("{s:o,s:o,s:o}", "key", text_bytes(what->key), "value",
                            text_bytes(what->value), "lease", number(what->lease));
    json_t *request = json_pack("{s:[{s:o}]}", "success", "request_put", put);
    if (request != NULL && what->modified != ETCD_ANY_REVISION) {
        json_t *compare =
            json_pack("[{s:o,s:s,s:s,s:o}]", "key", text_bytes(what->key), "target", "MOD",
                      "result", "EQUAL", "mod_revision", number(what->modified));
        if (json_object_set_new(request, "compare", compare) != 0) {
            json_decref(request);
            request = NULL;
        }
    }
    TRY(etcd_gateway_call(gateway, "/v3/kv/txn", request, &answer));
    if (answer == NULL)
        *result = ETCD_PUT_NO_LEASE;
    else
        *result = json_is_true(json_object_get(answer, "succeeded")) ? ETCD_PUT : ETCD_PUT_CHANGED;
    json_decref(answer);
    return STATUS_OK;
}

status etcd_lease_grant(etcd_gateway *gateway, int64_t id, int64_t ttl_ms, int64_t *out)
{
    static const char path[] = "/v3/lease/grant";
    json_t *answer = NULL;
    int64_t granted = id;
    TRY(etcd_gateway_call(
        gateway, path,
        json_pack("{s:o,s:o}", "ID", number(id), "TTL", number((ttl_ms + 999) / 1000)), &answer));
    bool is_good = answer == NULL ? id != 0 : read_number(answer, "ID", &granted) && granted > 0;
    json_decref(answer);
    if (!is_good)
        return etcd_gateway_nonsense(gateway, path);
    *out = granted;
    return STATUS_OK;
}

status etcd_lease_renew(etcd_gateway *gateway, int64_t lease, bool *lives)
{
    static const char path[] = "/v3/lease/keepalive";
    json_t *answer = NULL;
    int64_t left_s = 0;
    TRY(etcd_gateway_call(gateway, path, json_pack("{s:o}", "ID", number(lease)), &answer));
    bool is_good = answer == NULL || read_number(answer, "TTL", &left_s);
    json_decref(answer);
    if (!is_good)
        return etcd_gateway_nonsense(gateway, path);
    *lives = left_s > 0;
    return STATUS_OK;
}

status etcd_lease_revoke(etcd_gateway *gateway, int64_t lease)
{
    json_t *answer = NULL;
    TRY(etcd_gateway_call(gateway, "/v3/lease/revoke", json_pack("{s:o}", "ID", number(lease)),
                          &answer));
    json_decref(answer);
    return STATUS_OK;
}
