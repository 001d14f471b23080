/* The rendezvous on etcd, from its HTTP up: the gateway, the calls that are needed of the v3 API,
 * and the job's keys. Of a job there is, under mnist_ddp/rdzv/<run id>/
 *
 *   state       the state, under a lease that all nodes of the job renew: it goes some time after
 *               the last of them, and with it the job's name is free again
 *   node/<id>   a node's record, under that node's lease
 */
#include "dist/elastic/etcd.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/json_text.h"
#include "base/memory.h"
#include "base/module.h"
#include "base/text.h"
#include "base/transfer_ops.h"
#include "dist/elastic/rdzv_ops.h"
#include "dist/membership/keys.h"
#include "dist/net/socket.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES "node/" /* the keys of their records */

/* The gateway. */

enum {
    DEFAULT_PORT = 2379,
    MOST_ENDPOINTS = 16,
    URL_BYTES = SOCKET_ADDRESS_BYTES + 16,
    HOST_BYTES = 256,
    CLUSTER_BYTES = 24,
    TOKEN_BYTES = 4096,
    ANSWER_BYTES = 64 << 20,
    CONNECT_MS = 5000, /* one that is switched off holds a node that stops for no longer */
    HEAD_BYTES = 80,   /* shown of an answer that is not etcd's */
    NUMBER_BYTES = 24,
    PREFIX_BYTES = 512,
    KEY_BYTES = PREFIX_BYTES + 256,
    STATE_TTL_MS = 2 * 3600 * 1000, /* as torch keeps it */
    STATE_RENEW_MS = STATE_TTL_MS / 12,
};

/* What gRPC calls the outcome of a call. */
enum {
    GRPC_DEADLINE_EXCEEDED = 4,
    GRPC_NOT_FOUND = 5,
    GRPC_FAILED_PRECONDITION = 9, /* etcd: it is there already */
    GRPC_UNAUTHENTICATED = 16,
    GRPC_LAST = 16,
};

struct etcd_gateway {
    const transfer_ops *http;
    void *handle; /* what `http` works with */
    char endpoints[MOST_ENDPOINTS][URL_BYTES];
    int n, current;
    int64_t timeout_ms;
    etcd_access access;
    char token[TOKEN_BYTES];     /* the header that says who asks; "": none */
    bool has_asked;              /* for it */
    char cluster[CLUSTER_BYTES]; /* whose member the first answer came from; "" before */
};

/* An answer under way. */
typedef struct reply {
    transfer_answer http;
    byte_buffer body;
    bool is_stream; /* the body is a watch's messages, one after the other */
    int wake_fd;    /* for a stream: once it is readable it is left; -1: none */
    etcd_gateway *gateway;
    const char *path;
    bool ended;    /* the stream: it is left */
    status failed; /* at what came */
} reply;

/* "h:p", "http://h:p/" -> "http://h:p". */
static status parse_endpoint(const char *word, size_t length, char out[URL_BYTES])
{
    char text[URL_BYTES], host[HOST_BYTES], name[SOCKET_ADDRESS_BYTES];
    int port = 0;
    snprintf(text, sizeof text, "%.*s", (int)length, word);
    const char *scheme = strncmp(text, "https://", 8) == 0 ? "https" : "http";
    char *address = strstr(text, "://") != NULL ? strstr(text, "://") + 3 : text;
    size_t end = strlen(address);
    if (end > 0 && address[end - 1] == '/')
        address[end - 1] = '\0';
    bool is_known = address == text || strncmp(text, "http", 4) == 0;
    if (length >= sizeof text || !is_known || address[0] == '\0' ||
        strpbrk(address, "/@?# ") != NULL)
        return FAIL(STATUS_INVALID,
                    "etcd endpoint %.100s: expected HOST:PORT, http://HOST:PORT or "
                    "https://HOST:PORT",
                    text);
    TRY(socket_address_parse(address, DEFAULT_PORT, host, sizeof host, &port));
    socket_address_name(host, port, name);
    snprintf(out, URL_BYTES, "%s://%s", scheme, name);
    return STATUS_OK;
}

static status parse_endpoints(etcd_gateway *g, const char *list)
{
    size_t length = 0;
    for (const char *at = list, *word; (word = comma_list_next(&at, &length)) != NULL;) {
        if (g->n == MOST_ENDPOINTS)
            return FAIL(STATUS_INVALID, "etcd: at most %d endpoints", (int)MOST_ENDPOINTS);
        TRY(parse_endpoint(word, length, g->endpoints[g->n++]));
    }
    return g->n > 0 ? STATUS_OK : FAIL(STATUS_INVALID, "etcd: no endpoint is given");
}

static status open_http(etcd_gateway *g)
{
    const module *curl = NULL;
    status st = module_open("curl", &curl);
    if (st == STATUS_OK) {
        g->http = curl->transfer;
        return g->http->open(&g->handle);
    }
    status_append("; a rendezvous by etcd needs it, one by c10d does not");
    return STATUS_INVALID;
}

status etcd_gateway_open(const char *endpoints, const etcd_access *access, int64_t timeout_ms,
                         etcd_gateway **out)
{
    etcd_gateway *g = calloc(1, sizeof *g);
    if (g == NULL)
        return FAIL(STATUS_NO_MEMORY, "a client of etcd");
    g->timeout_ms = timeout_ms;
    if (access != NULL)
        g->access = *access;
    status st = parse_endpoints(g, endpoints);
    if (st == STATUS_OK)
        st = open_http(g);
    if (st != STATUS_OK) {
        etcd_gateway_close(g);
        return st;
    }
    *out = g;
    return STATUS_OK;
}

void etcd_gateway_close(etcd_gateway *gateway)
{
    if (gateway == NULL)
        return;
    if (gateway->http != NULL)
        gateway->http->close(gateway->handle);
    free(gateway);
}

static const char *here(const etcd_gateway *g)
{
    return g->endpoints[g->current];
}

/* `words` become part of a message: not what a stranger's bytes do to a terminal. */
static status refused(const etcd_gateway *g, status code, const char *path, const char *words)
{
    char shown[512];
    printable_copy(PRINTABLE_LINE, words, shown, sizeof shown);
    return FAIL(code, "etcd at %s, %s: %s", here(g), path, shown);
}

/* etcd has said why it does not carry out a call, by gRPC's code and its own words. */
static status etcd_failure(const reply *r, int code, const char *words)
{
    bool is_old;
    switch (code) {
    case GRPC_NOT_FOUND:
    case GRPC_FAILED_PRECONDITION:
        return STATUS_OK;
    case GRPC_DEADLINE_EXCEEDED:
        return refused(r->gateway, STATUS_TIMEOUT, r->path, words);
    case 3:  /* invalid argument: also a call without a user, if etcd wants one */
    case 6:  /* already exists */
    case 7:  /* permission denied */
    case 11: /* out of range */
    case 12: /* unimplemented */
        return refused(r->gateway, STATUS_INVALID, r->path, words);
    case GRPC_UNAUTHENTICATED: /* the token has expired: the next call asks for another one */
        is_old = r->gateway->has_asked;
        r->gateway->has_asked = false;
        r->gateway->token[0] = '\0';
        return refused(r->gateway, is_old ? STATUS_PEER : STATUS_INVALID, r->path, words);
    default: /* no leader, no room, too many requests: it may pass */
        return refused(r->gateway, STATUS_PEER, r->path, words);
    }
}

/* The failure of a call whose answer has not what it must have. */
static status nonsense(const etcd_gateway *gateway, const char *path)
{
    return FAIL(STATUS_INVALID, "%s%s: the answer is not that of etcd's v3 API", here(gateway),
                path);
}

/* The version that an etcd without /v3 says it is; "" if that is no etcd. */
static void ask_version(etcd_gateway *g, char *out, size_t size_bytes);

/* What came is not etcd's: says what it is. Not in the midst of a transfer if its code is 404. */
static status no_etcd(const reply *r)
{
    char shown[4 * HEAD_BYTES + 1], type[TRANSFER_TYPE_BYTES], version[32] = "";
    size_t n = r->body.size < HEAD_BYTES ? r->body.size : HEAD_BYTES;
    printable_bytes(r->body.data, n, shown, sizeof shown);
    printable_copy(PRINTABLE_LINE, r->http.type, type, sizeof type);
    if (r->http.code == 404)
        ask_version(r->gateway, version, sizeof version);
    if (version[0] != '\0')
        return FAIL(STATUS_INVALID,
                    "etcd at %s is version %s, which has no /v3 API: version 3.4 or "
                    "later is needed",
                    here(r->gateway), version);
    bool is_proxy = r->http.code >= 502 && r->http.code <= 504;
    bool may_pass = is_proxy || r->gateway->cluster[0] != '\0'; /* etcd has answered there before */
    return FAIL(may_pass ? STATUS_PEER : STATUS_INVALID,
                "%s is not etcd with its v3 API (version 3.4 or later): HTTP %d, %s that begins "
                "with \"%s\"",
                here(r->gateway), r->http.code, type[0] != '\0' ? type : "something", shown);
}

/* All endpoints are to be members of one cluster, or nodes would meet in two places. */
static status check_cluster(const reply *r, const json_t *message)
{
    etcd_gateway *g = r->gateway;
    const char *id =
        json_string_value(json_object_get(json_object_get(message, "header"), "cluster_id"));
    if (id == NULL || strlen(id) >= CLUSTER_BYTES)
        return no_etcd(r);
    if (g->cluster[0] == '\0')
        snprintf(g->cluster, sizeof g->cluster, "%s", id);
    if (strcmp(g->cluster, id) != 0)
        return FAIL(STATUS_INVALID,
                    "etcd at %s is not of the cluster that answered before: are all "
                    "endpoints members of one cluster?",
                    here(g));
    return STATUS_OK;
}

/* One message: of a call, or of a stream, {"result": {...}}. *out is borrowed from it, NULL if etcd
 * says that something is not there. */
static status read_message(const reply *r, json_t *whole, json_t **out)
{
    json_t *message = json_object_get(whole, "result");
    const json_t *error = json_object_get(whole, "error");
    error = json_is_object(error) ? error : whole; /* a stream's, or a call's */
    const json_t *code = json_object_get(error, "grpc_code");
    code = code != NULL ? code : json_object_get(error, "code");
    const char *words = json_string_value(json_object_get(error, "message"));
    bool failed = json_is_integer(code) && json_integer_value(code) > 0 &&
                  json_integer_value(code) <= GRPC_LAST && words != NULL;
    *out = NULL;
    if (failed)
        return etcd_failure(r, (int)json_integer_value(code), words);
    message = message != NULL ? message : whole;
    if (r->http.code != 200 || !json_is_object(message))
        return no_etcd(r);
    TRY(check_cluster(r, message));
    *out = message;
    return STATUS_OK;
}

static status parse(const reply *r, size_t size_bytes, json_t **out)
{
    json_error_t error;
    *out = json_text_parse((const char *)r->body.data, size_bytes, JSON_REJECT_DUPLICATES, &error);
    if (*out != NULL)
        return STATUS_OK;
    return json_error_code(&error) == json_error_out_of_memory
               ? FAIL(STATUS_NO_MEMORY, "%zu bytes of JSON from etcd", size_bytes)
               : no_etcd(r);
}

/* A change, or the news that the watch is over: its changes are forgotten. */
static bool is_change(const json_t *message)
{
    return json_array_size(json_object_get(message, "events")) > 0 ||
           json_is_true(json_object_get(message, "canceled"));
}

/* The lines of a stream that are there. */
static status read_lines(reply *r)
{
    const uint8_t *end;
    while (r->body.size > 0 && (end = memchr(r->body.data, '\n', r->body.size)) != NULL) {
        json_t *whole = NULL, *message = NULL;
        size_t length = (size_t)(end - r->body.data) + 1;
        TRY(parse(r, length, &whole));
        status st = read_message(r, whole, &message);
        r->ended = st == STATUS_OK && (message == NULL || is_change(message));
        json_decref(whole);
        byte_buffer_consume(&r->body, length);
        if (st != STATUS_OK || r->ended)
            return st;
    }
    return STATUS_OK;
}

static status begin(void *ctx, const transfer_answer *answer)
{
    reply *r = ctx;
    r->http = *answer;
    return STATUS_OK;
}

static status take(void *ctx, const void *data, size_t size_bytes)
{
    reply *r = ctx;
    if (size_bytes > ANSWER_BYTES - r->body.size)
        return r->failed = FAIL(STATUS_INVALID, "etcd at %s, %s: more than %d MiB came",
                                here(r->gateway), r->path, ANSWER_BYTES >> 20);
    r->failed = byte_buffer_append(&r->body, data, size_bytes);
    if (r->failed == STATUS_OK && r->is_stream && r->http.code == 200)
        r->failed = read_lines(r);
    return r->ended ? STATUS_PEER : r->failed;
}

/* `json` to `path`, or a GET of it. What came is in `r`. */
static status transfer(reply *r, const char *json, int64_t deadline_ns)
{
    etcd_gateway *g = r->gateway;
    char url[URL_BYTES + 64];
    snprintf(url, sizeof url, "%s%s", here(g), r->path);
    int64_t connect_ms = g->timeout_ms < CONNECT_MS ? g->timeout_ms : CONNECT_MS;
    const transfer_request request = {.url = url,
                                      .json = json,
                                      .header = g->token,
                                      .cacert = g->access.cacert,
                                      .cert = g->access.cert,
                                      .key = g->access.key,
                                      .is_direct = true,
                                      .connect_timeout_ms = (int)connect_ms,
                                      .deadline_ns = deadline_ns,
                                      .wake_fd = r->wake_fd,
                                      .begin = begin,
                                      .take = take,
                                      .ctx = r};
    transfer_answer answer;
    status st = g->http->perform(g->handle, &request, &answer);
    r->ended = r->ended || answer.interrupted;
    if (st == STATUS_OK || r->ended || r->failed != STATUS_OK)
        return st;
    if (st == STATUS_PEER && g->cluster[0] == '\0')
        status_append(here(g)[4] == 's' ? "; is what listens there etcd? One that asks for a "
                                          "certificate is given --rdzv-conf=cert=FILE,key=FILE"
                                        : "; is what listens there etcd? One with TLS is "
                                          "https://HOST:PORT");
    return status_context(st, "etcd at %s", here(g));
}

static void ask_version(etcd_gateway *g, char *out, size_t size_bytes)
{
    reply r = {.gateway = g, .path = "/version", .wake_fd = -1};
    json_t *value = NULL;
    if (transfer(&r, NULL, clock_deadline_ns(g->timeout_ms)) == STATUS_OK)
        value = json_text_parse((const char *)r.body.data, r.body.size, 0, NULL);
    const char *version = json_string_value(json_object_get(value, "etcdserver"));
    if (version != NULL)
        printable_copy(PRINTABLE_LINE, version, out, size_bytes);
    json_decref(value);
    byte_buffer_free(&r.body);
}

/* Another endpoint may do better next time. */
static status turn(etcd_gateway *g, status st)
{
    if (st == STATUS_REFUSED || st == STATUS_UNKNOWN_HOST || st == STATUS_TIMEOUT ||
        st == STATUS_PEER)
        g->current = (g->current + 1) % g->n;
    return st;
}

static status print(json_t *request, char **out)
{
    status st = request != NULL ? json_text_print(request, JSON_COMPACT, out)
                                : FAIL(STATUS_NO_MEMORY, "a request to etcd");
    json_decref(request);
    return st;
}

static status call(etcd_gateway *gateway, const char *path, json_t *request, json_t **answer)
{
    reply r = {.gateway = gateway, .path = path, .wake_fd = -1};
    char *text = NULL;
    json_t *whole = NULL, *message = NULL;
    TRY(print(request, &text));
    status st = transfer(&r, text, clock_deadline_ns(gateway->timeout_ms));
    if (st == STATUS_OK)
        st = parse(&r, r.body.size, &whole);
    if (st == STATUS_OK)
        st = read_message(&r, whole, &message);
    if (st == STATUS_OK)
        *answer = json_incref(message);
    json_decref(whole);
    byte_buffer_free(&r.body);
    free(text);
    return turn(gateway, st);
}

/* A user's first call asks for the token that all others bring. An etcd without users has none.
 * Lets go of `request` if that fails. */
static status authenticate(etcd_gateway *g, json_t *request)
{
    static const char path[] = "/v3/auth/authenticate";
    const etcd_access *who = &g->access;
    json_t *answer = NULL;
    if (who->user[0] == '\0' || g->has_asked)
        return STATUS_OK;
    status st = call(g, path, json_pack("{s:s,s:s}", "name", who->user, "password", who->password),
                     &answer);
    const char *token = json_string_value(json_object_get(answer, "token"));
    if (answer != NULL && (token == NULL || snprintf(g->token, TOKEN_BYTES, "Authorization: %s",
                                                     token) >= TOKEN_BYTES))
        st = nonsense(g, path);
    g->has_asked = st == STATUS_OK;
    json_decref(answer);
    if (st != STATUS_OK)
        json_decref(request);
    return st;
}

status etcd_gateway_call(etcd_gateway *gateway, const char *path, json_t *request, json_t **answer)
{
    TRY(authenticate(gateway, request));
    return call(gateway, path, request, answer);
}

/* The stream was not to end: it may be no stream. */
static status stream_end(const reply *r)
{
    json_t *whole = NULL, *message = NULL;
    if (r->http.code != 200) {
        TRY(parse(r, r->body.size, &whole));
        status st = read_message(r, whole, &message);
        json_decref(whole);
        return st;
    }
    return FAIL(STATUS_PEER, "etcd at %s, %s: it has ended the stream", here(r->gateway), r->path);
}

/* The calls. */

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
    const char *letters = value != NULL ? json_string_value(value) : ""; /* 0 bytes are left out */
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

/* One key into the view, without the prefix. A key that is no text is passed over. */
static status read_key(const json_t *object, const char *prefix, rdzv_view *view)
{
    store_watch_key pair = {0};
    char *name = NULL, *value = NULL;
    size_t name_bytes = 0, length = strlen(prefix);
    status st = read_bytes(object, "key", &name, &name_bytes);
    if (st == STATUS_OK)
        st = read_bytes(object, "value", &value, &pair.value_bytes);
    if (st == STATUS_OK && (!read_number(object, "create_revision", &pair.created) ||
                            !read_number(object, "mod_revision", &pair.set)))
        st = STATUS_INVALID;
    if (st == STATUS_OK && memchr(name, '\0', name_bytes) == NULL &&
        strncmp(name, prefix, length) == 0) {
        pair.key = name + length;
        pair.value = value;
        st = rdzv_view_add(view, NODES, &pair);
    }
    free(name);
    free(value);
    return st;
}

static status read_keys(const json_t *answer, const char *prefix, rdzv_view *view)
{
    const json_t *list = json_object_get(answer, "kvs");
    status st = STATUS_OK;
    if (!read_number(json_object_get(answer, "header"), "revision", &view->revision) ||
        view->revision == 0)
        return STATUS_INVALID;
    for (size_t i = 0; st == STATUS_OK && i < json_array_size(list); i++)
        st = read_key(json_array_get(list, i), prefix, view);
    return st;
}

/* All keys that begin with `keys`, at one revision, which is the latest: a majority of etcd's
 * members knows of no later one. */
static status list(etcd_gateway *gateway, const char *keys, const char *prefix, rdzv_view *out)
{
    static const char path[] = "/v3/kv/range";
    json_t *answer = NULL;
    rdzv_view view = {0};
    TRY(etcd_gateway_call(
        gateway, path, json_pack("{s:o,s:o}", "key", text_bytes(keys), "range_end", end_of(keys)),
        &answer));
    status st = read_keys(answer, prefix, &view);
    json_decref(answer);
    if (st == STATUS_OK)
        *out = view;
    else
        rdzv_view_free(&view);
    return st == STATUS_INVALID ? nonsense(gateway, path) : st;
}

/* Returns as soon as a key that begins with `keys` has changed at `revision` or later; also if so
 * old changes are forgotten, if wake_fd (-1: none) is readable, and after wait_ms. */
static status await_change(etcd_gateway *gateway, const char *keys, int64_t revision,
                           int64_t wait_ms, int wake_fd)
{
    reply r = {.gateway = gateway, .path = "/v3/watch", .is_stream = true, .wake_fd = wake_fd};
    char *text = NULL;
    json_t *request = json_pack("{s:{s:o,s:o,s:o}}", "create_request", "key", text_bytes(keys),
                                "range_end", end_of(keys), "start_revision", number(revision));
    TRY(authenticate(gateway, request));
    int64_t deadline_ns = clock_deadline_ns(wait_ms);
    TRY(print(request, &text));
    status st = transfer(&r, text, deadline_ns);
    bool is_over = r.http.code == 200 || clock_passed(deadline_ns);
    if (r.ended || (st == STATUS_TIMEOUT && r.failed == STATUS_OK && is_over))
        st = STATUS_OK;
    else if (st == STATUS_OK)
        st = stream_end(&r);
    byte_buffer_free(&r.body);
    free(text);
    return turn(gateway, st);
}

enum { ANY_REVISION = -1 };

typedef enum put_result {
    PUT,
    PUT_CHANGED,  /* nothing was put: the key's revision is another */
    PUT_NO_LEASE, /* likewise: there is no such lease */
} put_result;

typedef struct put_value {
    const char *key, *value;
    int64_t lease;    /* the key goes when that ends */
    int64_t modified; /* only if this is the key's revision (0: it is not there), or ANY_REVISION */
} put_value;

static status put(etcd_gateway *gateway, const put_value *what, put_result *result)
{
    json_t *answer = NULL;
    json_t *pair = json_pack("{s:o,s:o,s:o}", "key", text_bytes(what->key), "value",
                             text_bytes(what->value), "lease", number(what->lease));
    json_t *request = json_pack("{s:[{s:o}]}", "success", "request_put", pair);
    if (request != NULL && what->modified != ANY_REVISION) {
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
        *result = PUT_NO_LEASE;
    else
        *result = json_is_true(json_object_get(answer, "succeeded")) ? PUT : PUT_CHANGED;
    json_decref(answer);
    return STATUS_OK;
}

/* A lease for ttl_ms, in whole seconds, rounded up; etcd may make it longer. `id`: its own choice,
 * or 0. *out is its id. Does nothing if `id` is there already. */
static status lease_grant(etcd_gateway *gateway, int64_t id, int64_t ttl_ms, int64_t *out)
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
        return nonsense(gateway, path);
    *out = granted;
    return STATUS_OK;
}

/* It begins anew; *lives: false if it has ended, or never was. */
static status lease_renew(etcd_gateway *gateway, int64_t lease, bool *lives)
{
    static const char path[] = "/v3/lease/keepalive";
    json_t *answer = NULL;
    int64_t left_s = 0;
    TRY(etcd_gateway_call(gateway, path, json_pack("{s:o}", "ID", number(lease)), &answer));
    bool is_good = answer == NULL || read_number(answer, "TTL", &left_s);
    json_decref(answer);
    if (!is_good)
        return nonsense(gateway, path);
    *lives = left_s > 0;
    return STATUS_OK;
}

/* Ends it, and with it its keys; also if it has ended already. */
static status lease_revoke(etcd_gateway *gateway, int64_t lease)
{
    json_t *answer = NULL;
    TRY(etcd_gateway_call(gateway, "/v3/lease/revoke", json_pack("{s:o}", "ID", number(lease)),
                          &answer));
    json_decref(answer);
    return STATUS_OK;
}

/* The job. */

typedef struct job {
    etcd_gateway *etcd;
    char prefix[PREFIX_BYTES], state_key[KEY_BYTES], node_key[KEY_BYTES];
    int64_t ttl_ms;
    int wake_fd;         /* -1: none */
    int64_t lease;       /* this node's; 0: none */
    int64_t state_lease; /* an id that all nodes know */
    int64_t state_renew_ns;
} job;

static void job_close(void *self)
{
    job *j = self;
    if (j == NULL)
        return;
    etcd_gateway_close(j->etcd);
    free(j);
}

static status job_open(const rdzv_service_options *options, void **out)
{
    job *j = calloc(1, sizeof *j);
    if (j == NULL)
        return FAIL(STATUS_NO_MEMORY, "a rendezvous by etcd");
    status st = rdzv_prefix(options->run_id, j->prefix, sizeof j->prefix);
    snprintf(j->state_key, KEY_BYTES, "%s" KEYS_STATE, j->prefix);
    int length = snprintf(j->node_key, KEY_BYTES, "%s" NODES "%s", j->prefix, options->node_id);
    if (st == STATUS_OK && length >= KEY_BYTES)
        st = FAIL(STATUS_INVALID, "a node's id is too long: %.64s...", options->node_id);
    j->ttl_ms = options->ttl_ms;
    j->wake_fd = options->wake_fd > 0 ? options->wake_fd : -1;
    j->state_renew_ns = clock_deadline_ns(STATE_RENEW_MS);
    j->state_lease = (int64_t)(fnv1a(FNV1A_START, j->prefix, strlen(j->prefix)) >> 1 | 1);
    if (st == STATUS_OK)
        st = etcd_gateway_open(options->endpoints, options->access, options->timeout_ms, &j->etcd);
    if (st != STATUS_OK) {
        job_close(j);
        return st;
    }
    *out = j;
    return STATUS_OK;
}

static status job_look(void *self, rdzv_scope scope, int64_t after, int64_t wait_ms, rdzv_view *out)
{
    job *j = self;
    const char *keys = scope == RDZV_STATE ? j->state_key : j->prefix; /* as they begin */
    if (after >= 0 && wait_ms > 0)
        TRY(await_change(j->etcd, keys, after + 1, wait_ms, j->wake_fd));
    return list(j->etcd, keys, j->prefix, out);
}

/* The state outlives all nodes for STATE_TTL_MS. */
static status keep_state(job *j)
{
    bool lives = false;
    TRY(lease_renew(j->etcd, j->state_lease, &lives));
    if (!lives) /* or another node has just begun it */
        TRY(lease_grant(j->etcd, j->state_lease, STATE_TTL_MS, &j->state_lease));
    j->state_renew_ns = clock_deadline_ns(STATE_RENEW_MS);
    return STATUS_OK;
}

static status job_set_state(void *self, int64_t state_revision, const char *state, bool *set)
{
    job *j = self;
    put_result result = PUT_NO_LEASE;
    TRY(keep_state(j));
    TRY(put(j->etcd, &(put_value){j->state_key, state, j->state_lease, state_revision}, &result));
    if (result == PUT_NO_LEASE)
        return FAIL(STATUS_PEER, "etcd has ended the lease of the job's state at this moment");
    *set = result == PUT;
    return STATUS_OK;
}

static status job_put_node(void *self, const char *value, bool runs_nothing)
{
    job *j = self;
    bool lives = false;
    put_result result = PUT_NO_LEASE;
    (void)runs_nothing;
    if (j->lease != 0)
        TRY(lease_renew(j->etcd, j->lease, &lives));
    if (!lives)
        TRY(lease_grant(j->etcd, 0, j->ttl_ms, &j->lease));
    TRY(put(j->etcd, &(put_value){j->node_key, value, j->lease, ANY_REVISION}, &result));
    return result == PUT
               ? STATUS_OK
               : FAIL(STATUS_PEER, "etcd has ended this node's lease before its record was there");
}

static status job_keep_alive(void *self)
{
    job *j = self;
    bool lives = false;
    if (j->lease != 0)
        TRY(lease_renew(j->etcd, j->lease, &lives));
    if (!lives) {
        j->lease = 0;
        return FAIL(STATUS_INVALID,
                    "etcd has ended this node's lease: it was not renewed for %.3g s",
                    (double)j->ttl_ms / 1000);
    }
    if (clock_passed(j->state_renew_ns))
        (void)keep_state(j); /* the next call tries again */
    return STATUS_OK;
}

static status job_remove_node(void *self)
{
    job *j = self;
    if (j->lease != 0)
        TRY(lease_revoke(j->etcd, j->lease));
    j->lease = 0;
    return STATUS_OK;
}

const rdzv_ops rdzv_etcd = {.name = "etcd",
                            .open = job_open,
                            .close = job_close,
                            .look = job_look,
                            .set_state = job_set_state,
                            .put_node = job_put_node,
                            .keep_alive = job_keep_alive,
                            .remove_node = job_remove_node};
