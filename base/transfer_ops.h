/* HTTP, as a module with a library for it provides it (base/module.h): files are fetched by it
 * (data/download.c), and etcd is talked to. */
#ifndef MNIST_DDP_BASE_TRANSFER_OPS_H
#define MNIST_DDP_BASE_TRANSFER_OPS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TRANSFER_URL_BYTES = 2048, TRANSFER_TYPE_BYTES = 80 };

/* How a server has answered, after all redirects. */
typedef struct transfer_answer {
    int code;                       /* HTTP's: 200; 0: there was none */
    int64_t size_bytes;             /* the body's, as it was announced; -1: it was not */
    int64_t first_byte, whole;      /* by Content-Range: where the body begins, of how many; -1 */
    int64_t retry_after_s;          /* 0: not said */
    char type[TRANSFER_TYPE_BYTES]; /* Content-Type as it came; "" */
    char url[TRANSFER_URL_BYTES];   /* where redirects have led to; "" */
    bool interrupted;               /* wake_fd has ended it */
} transfer_answer;

typedef struct transfer_request {
    const char *url;
    const char *json;                /* NULL: a GET. Else a POST of this. */
    const char *header;              /* one more, as its line; NULL or "": none */
    const char *cacert, *cert, *key; /* files: whose certificates are trusted, and what shows who
                                        asks; NULL or "": those of the machine, and nothing */
    bool is_direct;     /* no proxy is asked and no redirect followed: a service of one's own */
    uint64_t from_byte; /* above 0: the rest from there on is asked for */
    int connect_timeout_ms;
    int stall_timeout_s; /* 0: none */
    int64_t deadline_ns; /* clock_now_ns(): of all of it; 0: none */
    int wake_fd;         /* ends the transfer once it is readable; -1: none */

    /* `begin` (may be NULL) once, before the body's first byte; `take` for each piece of it, as
     * soon as it comes. A status of theirs other than STATUS_OK ends the transfer, and is what it
     * returns. */
    status (*begin)(void *ctx, const transfer_answer *answer);
    status (*take)(void *ctx, const void *data, size_t size_bytes);
    void *ctx;
} transfer_request;

typedef struct transfer_ops {
    /* A handle keeps connections open from one transfer to the next. */
    status (*open)(void **out);

    /* One request, and its answer. Follows a few redirects: of an https URL to https only.
     * STATUS_OK: the body came to its end, whatever the code. STATUS_UNKNOWN_HOST, STATUS_REFUSED,
     * STATUS_TIMEOUT (of the connection, nothing came for so long, or the deadline), STATUS_PEER
     * (it broke off), STATUS_INVALID (a redirect that is not followed, a certificate that is not
     * trusted or not there, no HTTP). *answer is set in any case. A POST whose connection, kept
     * from an earlier one, broke before any answer is sent once more: the server may get it twice.
     */
    status (*perform)(void *self, const transfer_request *request, transfer_answer *answer);
    void (*close)(void *self); /* accepts NULL */
} transfer_ops;

#endif
