/* Arenas of a network as a safetensors file. Arena a's tensor of a parameter is named
 * "<prefixes[a]>.<parameter>", or just "<parameter>" where the prefix is "". */
#ifndef MNIST_DDP_MODEL_CHECKPOINT_ARENAS_H
#define MNIST_DDP_MODEL_CHECKPOINT_ARENAS_H

#include "model/network.h"
#include "model/safetensors.h"

/* Exports the arenas (device memory) and writes them, at most OPTIMIZER_MAX_STATES. */
status checkpoint_arenas_write(const char *path, network *net, size_t n_arenas,
                               const char *const *prefixes, float *const *arenas,
                               const safetensors_entry *metadata, size_t n_metadata);

/* Reads them into `host`, one after the other, network_count() floats each in PyTorch's order.
 * STATUS_INVALID if a tensor is missing, has another shape or should not be there. */
status checkpoint_arenas_read(const char *path, const network *net, size_t n_arenas,
                              const char *const *prefixes, float *host);

#endif
