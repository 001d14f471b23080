#include "dist/elastic/etcd_gateway.h"

#include "base/clock.h"
#include "base/json_text.h"
#include "base/memory.h"
#include "base/module.h"
#include "base/text.h"
#include "base/transfer_ops.h"
#include "dist/net/socket_address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_PORT = 2379,
    MOST_ENDPOINTS = 16,
    URL_BYTES = SOCKET_ADDRESS_BYTES + 16,
    HOST_BYTES = 256,
    CLUSTER_BYTES = 24,
    TOKEN_BYTES = 4096,
    ANSWER_BYTES = 64 << 20,
    CONNECT_MS = 5000, /* one that is switched off holds a node that stops for no longer */
    HEAD_BYTES = 80,   /* of an answer that is not etcd's, for the message */
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
    void *handle; /* of `http` */
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
    const etcd_stream *stream; /* NULL: of a call */
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
    if (st == STATUS_OK && curl->transfer == NULL)
        st = FAIL(STATUS_INVALID, "module curl: that file is another module; what does "
                                  "MNIST_DDP_CURL_MODULE name?");
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

status etcd_gateway_nonsense(const etcd_gateway *gateway, const char *path)
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
    error = json_is_object(error) ? error : whole; /* of a stream, or of a call */
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

/* The lines of a stream that are there. */
static status read_lines(reply *r)
{
    const uint8_t *end;
    while (r->body.size > 0 && (end = memchr(r->body.data, '\n', r->body.size)) != NULL) {
        json_t *whole = NULL, *message = NULL;
        size_t length = (size_t)(end - r->body.data) + 1;
        TRY(parse(r, length, &whole));
        status st = read_message(r, whole, &message);
        r->ended = st == STATUS_OK && (message == NULL || r->stream->is_enough(message));
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
    if (r->failed == STATUS_OK && r->stream != NULL && r->http.code == 200)
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
                                      .wake_fd = r->stream != NULL ? r->stream->wake_fd : -1,
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
    reply r = {.gateway = g, .path = "/version"};
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
    reply r = {.gateway = gateway, .path = path};
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
        st = etcd_gateway_nonsense(g, path);
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

status etcd_gateway_follow(etcd_gateway *gateway, json_t *request, const etcd_stream *how)
{
    reply r = {.gateway = gateway, .path = how->path, .stream = how};
    TRY(authenticate(gateway, request));
    int64_t deadline_ns = clock_deadline_ns(how->wait_ms);
    char *text = NULL;
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
