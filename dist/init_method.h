/* How the ranks of a job meet, as init_method of torch.distributed.init_process_group says it:
 *
 *     env://              RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say it
 *     tcp://HOST:PORT     rank 0 serves the store there
 *     file:///PATH        rank 0 serves it anywhere, and says where in this file (init_file.h)
 *
 * Each may end in ?rank=R&world_size=N. */
#ifndef MNIST_DDP_DIST_INIT_METHOD_H
#define MNIST_DDP_DIST_INIT_METHOD_H

#include "base/status.h"

enum { INIT_METHOD_HOST_BYTES = 256, INIT_METHOD_PATH_BYTES = 1024 };

typedef enum init_method_kind {
    INIT_METHOD_ENV,
    INIT_METHOD_TCP,
    INIT_METHOD_FILE
} init_method_kind;

typedef struct init_method {
    init_method_kind kind;
    char host[INIT_METHOD_HOST_BYTES]; /* of tcp, without brackets */
    int port;
    char path[INIT_METHOD_PATH_BYTES]; /* of file; absolute */
    int rank, world_size;              /* -1: it does not say */
} init_method;

/* STATUS_INVALID, with what is expected. */
status init_method_parse(const char *text, init_method *out);

#endif
