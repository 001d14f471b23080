/* An HTTP server, as a module with a library for it provides it (base/module.h): those who serve
 * know no other. All of it happens in the thread that calls `run`. */
#ifndef MNIST_DDP_APP_COMMON_HTTP_SERVER_OPS_H
#define MNIST_DDP_APP_COMMON_HTTP_SERVER_OPS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Valid during the call of `answer`. */
typedef struct http_request {
    const char *method; /* "GET" */
    const char *path;   /* "/page.css", without what follows a '?' */
    const char *host;   /* the Host header; NULL: there was none */
    const uint8_t *body;
    size_t body_bytes;
} http_request;

typedef struct http_answer {
    int code;         /* 200 */
    const char *type; /* Content-Type */
    const char *body; /* text; the server has copied it when `answer` is called next */
    size_t body_bytes;
} http_answer;

typedef struct http_server_options {
    int listen_fd;           /* a socket that listens; the server closes it */
    size_t body_limit_bytes; /* a request's; a larger one gets 413 */
    int connections;         /* at a time; beyond, the one that is idle longest is closed */
    int request_ms;          /* a connection that has completed no request for so long is closed */
    const char *const *headers; /* in each answer: name, value, name, value, NULL */
    void (*answer)(void *ctx, const http_request *request, http_answer *out);
    void *ctx;
} http_server_options;

typedef struct http_server_ops {
    /* On failure the socket stays the caller's. The options outlive the server. */
    status (*open)(const http_server_options *options, void **out);

    /* Answers requests for about `duration_ms`. STATUS_IO if that cannot be done any more. */
    status (*run)(void *self, int duration_ms);
    void (*close)(void *self); /* accepts NULL */
} http_server_ops;

#endif
