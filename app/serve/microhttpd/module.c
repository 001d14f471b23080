/* The module for HTTP: libmicrohttpd, driven by this thread through its epoll descriptor. */
#include "base/module.h"
#include "app/common/http_server_ops.h"
#include "base/clock.h"

#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { CONNECTION_BYTES = 32768, LOOK_MS = 250 };

/* Codes of HTTP: the library's names for them change. */
enum { METHOD_NOT_ALLOWED = 405, CONTENT_TOO_LARGE = 413 };

/* A connection, in a list of all. */
typedef struct peer {
    int fd;
    bool is_shut;     /* the library is about to close it */
    int64_t since_ns; /* it came, or its last request was complete */
    struct peer *next, *before;
} peer;

typedef struct server {
    const http_server_options *options;
    struct MHD_Daemon *daemon;
    int epoll_fd;
    int n;      /* how many peers are not shut */
    peer peers; /* the list's head */
} server;

/* A request while it comes in. */
typedef struct upload {
    uint8_t *body;
    size_t size_bytes;
    bool too_large;
} upload;

/* The library closes a connection whose socket was shut down. */
static void shut(server *s, peer *p)
{
    s->n -= !p->is_shut;
    p->is_shut = true;
    shutdown(p->fd, SHUT_RDWR);
}

static void shut_oldest(server *s)
{
    peer *oldest = NULL;
    for (peer *p = s->peers.next; p != &s->peers; p = p->next)
        if (!p->is_shut && (oldest == NULL || p->since_ns <= oldest->since_ns))
            oldest = p;
    if (oldest != NULL)
        shut(s, oldest);
}

static void note_connection(void *self, struct MHD_Connection *connection, void **context,
                            enum MHD_ConnectionNotificationCode what)
{
    server *s = self;
    peer *p = *context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context = p = malloc(sizeof *p);
        if (p == NULL)
            return;
        *p = (peer){.fd = info->connect_fd,
                    .since_ns = clock_now_ns(),
                    .next = s->peers.next,
                    .before = &s->peers};
        p->next->before = p;
        s->peers.next = p;
        if (++s->n > s->options->connections)
            shut_oldest(s);
    } else if (p != NULL) {
        s->n -= !p->is_shut;
        p->next->before = p->before;
        p->before->next = p->next;
        free(p);
    }
}

static void note_completed(void *self, struct MHD_Connection *connection, void **context,
                           enum MHD_RequestTerminationCode how)
{
    (void)self;
    (void)how;
    upload *u = *context;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    peer *p = info != NULL ? info->socket_context : NULL;
    if (p != NULL)
        p->since_ns = clock_now_ns();
    if (u != NULL)
        free(u->body);
    free(u);
    *context = NULL;
}

static enum MHD_Result put_answer(const server *s, struct MHD_Connection *connection,
                                  const http_answer *a)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        a->body_bytes, (void *)(uintptr_t)a->body, MHD_RESPMEM_MUST_COPY);
    if (response == NULL)
        return MHD_NO;
    enum MHD_Result done = MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, a->type);
    for (const char *const *h = s->options->headers; *h != NULL && done == MHD_YES; h += 2)
        done = MHD_add_response_header(response, h[0], h[1]);
    if (done == MHD_YES && a->code == METHOD_NOT_ALLOWED)
        done = MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, POST");
    if (done == MHD_YES)
        done = MHD_queue_response(connection, (unsigned)a->code, response);
    MHD_destroy_response(response);
    return done;
}

static enum MHD_Result refuse_large(const server *s, struct MHD_Connection *connection)
{
    static const char text[] = "The body of the request is too large.\n";
    return put_answer(s, connection,
                      &(http_answer){CONTENT_TOO_LARGE, "text/plain", text, sizeof text - 1});
}

/* Says so before the body comes, if its length is known. */
static enum MHD_Result begin_request(server *s, struct MHD_Connection *connection, void **context)
{
    const char *length =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    *context = calloc(1, sizeof(upload));
    if (*context == NULL)
        return MHD_NO;
    if (length != NULL && strtoull(length, NULL, 10) > s->options->body_limit_bytes)
        return refuse_large(s, connection);
    return MHD_YES;
}

static enum MHD_Result take_part(const server *s, upload *u, const char *data, size_t *size_bytes)
{
    size_t size = *size_bytes;
    *size_bytes = 0;
    u->too_large = u->too_large || size > s->options->body_limit_bytes - u->size_bytes;
    if (u->too_large)
        return MHD_YES;
    uint8_t *body = realloc(u->body, u->size_bytes + size);
    if (body == NULL)
        return MHD_NO;
    memcpy(body + u->size_bytes, data, size);
    u->body = body;
    u->size_bytes += size;
    return MHD_YES;
}

/* Called once with the headers, once for each part of the body, and once at its end. */
static enum MHD_Result take_request(void *self, struct MHD_Connection *connection, const char *path,
                                    const char *method, const char *version, const char *data,
                                    size_t *size_bytes, void **context)
{
    server *s = self;
    upload *u = *context;
    (void)version;
    if (u == NULL)
        return begin_request(s, connection, context);
    if (*size_bytes > 0)
        return take_part(s, u, data, size_bytes);
    if (u->too_large)
        return refuse_large(s, connection);
    http_request request = {
        .method = method,
        .path = path,
        .host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST),
        .body = u->body,
        .body_bytes = u->size_bytes,
    };
    http_answer answer = {.code = 500, .type = "text/plain", .body = ""};
    s->options->answer(s->options->ctx, &request, &answer);
    return put_answer(s, connection, &answer);
}

static void close_server(void *self)
{
    server *s = self;
    if (s == NULL)
        return;
    if (s->daemon != NULL)
        MHD_stop_daemon(s->daemon);
    free(s);
}

static status open_server(const http_server_options *options, void **out)
{
    server *s = calloc(1, sizeof *s);
    if (s == NULL)
        return FAIL(STATUS_NO_MEMORY, "an HTTP server");
    s->options = options;
    s->peers.next = s->peers.before = &s->peers;
    s->daemon = MHD_start_daemon(
        MHD_USE_EPOLL, 0, NULL, NULL, take_request, s, MHD_OPTION_LISTEN_SOCKET, options->listen_fd,
        MHD_OPTION_CONNECTION_LIMIT, 2 * (unsigned)options->connections, /* with those shut */
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_NOTIFY_CONNECTION,
        note_connection, s, MHD_OPTION_NOTIFY_COMPLETED, note_completed, s, MHD_OPTION_END);
    const union MHD_DaemonInfo *info =
        s->daemon != NULL ? MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    if (info == NULL) {
        const int error = errno;
        if (s->daemon != NULL)
            MHD_quiesce_daemon(s->daemon); /* it no longer closes the socket */
        close_server(s);
        return FAIL(STATUS_IO, "libmicrohttpd does not start: %s", strerror(error));
    }
    s->epoll_fd = info->epoll_fd;
    *out = s;
    return STATUS_OK;
}

static void shut_late(server *s)
{
    int64_t last_ns = clock_now_ns() - (int64_t)s->options->request_ms * 1000000;
    for (peer *p = s->peers.next; p != &s->peers; p = p->next)
        if (p->since_ns < last_ns)
            shut(s, p);
}

static status run_server(void *self, int duration_ms)
{
    server *s = self;
    int64_t end_ns = clock_deadline_ns(duration_ms);
    do {
        MHD_UNSIGNED_LONG_LONG soon_ms;
        int wait_ms = s->options->request_ms < LOOK_MS ? s->options->request_ms : LOOK_MS;
        if (MHD_get_timeout(s->daemon, &soon_ms) == MHD_YES && soon_ms < (unsigned)wait_ms)
            wait_ms = (int)soon_ms;
        struct pollfd ready = {.fd = s->epoll_fd, .events = POLLIN};
        if (poll(&ready, 1, wait_ms) < 0 && errno != EINTR)
            return FAIL(STATUS_IO, "wait for HTTP requests: %s", strerror(errno));
        if (MHD_run(s->daemon) != MHD_YES)
            return FAIL(STATUS_IO, "libmicrohttpd cannot go on");
        shut_late(s);
    } while (!clock_passed(end_ns));
    return STATUS_OK;
}

static const http_server_ops ops = {open_server, run_server, close_server};

__attribute__((visibility("default"))) const module mnist_ddp_module;
const module mnist_ddp_module = {
    .abi_version = MODULE_ABI_VERSION,
    .http_server = &ops,
};
