/* How the user configures the rendezvous of the nodes: --rdzv-conf. */
#ifndef MNIST_DDP_APP_LAUNCH_RDZV_CONFIG_H
#define MNIST_DDP_APP_LAUNCH_RDZV_CONFIG_H

#include "base/status.h"

#include <stdint.h>

/* What --rdzv-conf says; -1 if it does not. */
typedef struct rdzv_config {
    int64_t join_ms;       /* join_timeout, or timeout: in seconds there */
    int64_t keep_alive_ms; /* keep_alive_interval, likewise */
    int keep_alive_misses; /* keep_alive_max_attempt */
    int is_host;           /* 0 or 1: whether this node serves the store */
} rdzv_config;

/* "key=value,key=value"; NULL: nothing given. torchrun's other keys are accepted and mean nothing
 * here; an unknown one is a warning. */
status rdzv_config_read(const char *text, rdzv_config *out);

#endif
