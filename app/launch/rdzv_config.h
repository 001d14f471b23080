/* How the user configures the rendezvous of the nodes: --rdzv-backend, --rdzv-endpoint and
 * --rdzv-conf. A password stands in `access` and nowhere else: endpoints and messages have none. */
#ifndef MNIST_DDP_APP_LAUNCH_RDZV_CONFIG_H
#define MNIST_DDP_APP_LAUNCH_RDZV_CONFIG_H

#include "app/options/options.h"
#include "base/status.h"
#include "dist/elastic/etcd.h"

#include <stdbool.h>
#include <stdint.h>

enum { RDZV_ADDRESS_BYTES = 256, RDZV_ENDPOINTS_BYTES = 1024 };

typedef enum rdzv_backend {
    RDZV_STATIC, /* nodes are numbered by --node-rank, and all are there for the whole job */
    RDZV_C10D,   /* they meet at a store of ours, and may come and go */
    RDZV_ETCD,   /* they meet at etcd, likewise */
} rdzv_backend;

typedef struct rdzv_config {
    rdzv_backend backend;
    char address[RDZV_ADDRESS_BYTES];     /* of the endpoint, etcd's first one; "" */
    int port;                             /* -1: none was given */
    char endpoints[RDZV_ENDPOINTS_BYTES]; /* all of them, each with its port: "h1:p,h2:p"; "" */

    etcd_access access; /* the endpoint's USER:PASSWORD@; --rdzv-conf's files */
    int is_https;       /* protocol: of endpoints that do not say it */

    /* --rdzv-conf, or torch's defaults */
    int64_t join_ms;       /* join_timeout, or timeout: in seconds there; -1: none was given */
    int64_t last_call_ms;  /* last_call_timeout, likewise */
    int64_t read_ms;       /* read_timeout, likewise */
    int64_t keep_alive_ms; /* keep_alive_interval, likewise */
    int keep_alive_misses; /* keep_alive_max_attempt */
    int is_host;           /* 0 or 1: whether this node serves the store; -1: nobody says */
} rdzv_config;

/* Hides USER:PASSWORD@ of --rdzv-endpoint in the process's own arguments and variables, for others
 * who list processes, and for the workers. */
void rdzv_config_hide(const options *opts, int argc, char **argv);

/* What a job has that was given nothing. */
rdzv_config rdzv_config_none(void);

/* torchrun's other keys of --rdzv-conf are accepted and mean nothing here; an unknown one is a
 * warning. STATUS_INVALID, with what to type. */
status rdzv_config_read(const options *opts, rdzv_config *out);

/* Calls `use` for each of the endpoints, in their order, until it returns false. */
typedef bool rdzv_endpoint_fn(void *ctx, const char *address, int port);
void rdzv_config_each(const char *endpoints, rdzv_endpoint_fn *use, void *ctx);

/* The port of an endpoint that names none: torchrun's. */
int rdzv_config_port(rdzv_backend backend);

#endif
