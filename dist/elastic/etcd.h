/* One connection to etcd, of version 3.4 or later: its gateway of HTTP and JSON, at one of several
 * endpoints. A call is a POST of JSON to /v3/<path>. The rendezvous on it: rdzv_ops.h.
 *
 * Every call ends by its deadline. It may fail with STATUS_REFUSED (nobody listens there),
 * STATUS_UNKNOWN_HOST, STATUS_TIMEOUT or STATUS_PEER (no answer, the connection broke, or this
 * member cannot answer now): the same call may be made again, and goes to the next endpoint. A call
 * that failed so may have been carried out. STATUS_INVALID: what listens there is not etcd, is too
 * old, is of another cluster than the endpoints before, or refuses the call: the message says it.
 */
#ifndef MNIST_DDP_DIST_ELASTIC_ETCD_H
#define MNIST_DDP_DIST_ELASTIC_ETCD_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct etcd_gateway etcd_gateway;

enum { ETCD_NAME_BYTES = 128, ETCD_FILE_BYTES = 512 };

/* Who asks, and whom it trusts; each "" if that is not given. */
typedef struct etcd_access {
    char user[ETCD_NAME_BYTES], password[ETCD_NAME_BYTES];
    char cacert[ETCD_FILE_BYTES], cert[ETCD_FILE_BYTES], key[ETCD_FILE_BYTES]; /* PEM */
} etcd_access;

/* `endpoints`: "h1:p,h2:p", also https://h:p; without a port 2379. `access` is copied; NULL:
 * nothing is given. Opens the module curl; connects to nobody yet. STATUS_INVALID for endpoints
 * that are none, and if the module is not there. timeout_ms: of each call; of that 5 s to connect.
 * For one thread. */
status etcd_gateway_open(const char *endpoints, const etcd_access *access, int64_t timeout_ms,
                         etcd_gateway **out);
void etcd_gateway_close(etcd_gateway *gateway); /* accepts NULL */

/* One call. Takes `request`, and lets go of it (NULL: there was no memory for it). *answer is the
 * caller's; NULL if etcd says that what the request names is not there, or is there already: a
 * lease. */
status etcd_gateway_call(etcd_gateway *gateway, const char *path, json_t *request, json_t **answer);

#endif
