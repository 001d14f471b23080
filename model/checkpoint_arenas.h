/* Arenas of a network as a safetensors file. Arena a's tensor of a parameter is named
 * "<prefixes[a]>.<parameter>", or just "<parameter>" if the prefix is "". */
#ifndef MNIST_DDP_MODEL_CHECKPOINT_ARENAS_H
#define MNIST_DDP_MODEL_CHECKPOINT_ARENAS_H

#include "model/network.h"
#include "model/optimizer.h"
#include "model/safetensors.h"

typedef struct checkpoint_arenas {
    size_t n; /* at most OPTIMIZER_MAX_STATES */
    const char *prefixes[OPTIMIZER_MAX_STATES];
    float *arenas[OPTIMIZER_MAX_STATES]; /* device memory */
} checkpoint_arenas;

/* Exports the arenas and writes them; *hash as in safetensors_write. */
status checkpoint_arenas_write(const char *path, network *net, const checkpoint_arenas *what,
                               const safetensors_entry *metadata, size_t n_metadata,
                               uint64_t *hash);

/* Copies them into `host`, one after the other, network_count() floats each in PyTorch's order; the
 * arenas themselves stay as they are. STATUS_INVALID if a tensor is missing, has another shape or
 * is unexpected. */
status checkpoint_arenas_read(const safetensors *file, const network *net,
                              const checkpoint_arenas *what, float *host);

#endif
