/* A parameter server among the ranks of a group: rank 0 gets everybody's gradients and sends
 * parameters back. All of a step's traffic passes through it, as it does through DataParallel's
 * master. */
#ifndef MNIST_DDP_DIST_PARAM_SERVER_H
#define MNIST_DDP_DIST_PARAM_SERVER_H

#include "base/status.h"
#include "dist/process_group/process_group.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct param_server param_server;

/* Two arrays of the same kind of memory, each with what else travels after it. */
typedef struct param_server_arrays {
    float *gradients;  /* (n_gradients) */
    float *parameters; /* (n_parameters) */
    size_t n_gradients, n_parameters;
    device_stream *stream; /* of their device; NULL: host memory */
} param_server_arrays;

/* Borrows all of it. */
status param_server_create(process_group *group, const param_server_arrays *arrays,
                           param_server **out);
void param_server_destroy(param_server *server); /* accepts NULL */

/* Whether this rank is the server. */
bool param_server_is_here(const param_server *server);

/* The server's gradients become the mean over all ranks; the others' are spent. */
status param_server_collect(param_server *server);

/* All ranks' parameters become the server's. */
status param_server_publish(param_server *server);

#endif
