/* What safetensors' reader and writer share. */
#ifndef MNIST_DDP_MODEL_SAFETENSORS_FORMAT_H
#define MNIST_DDP_MODEL_SAFETENSORS_FORMAT_H

#include "model/safetensors.h"

#include <stdbool.h>

enum { SAFETENSORS_MAX_HEADER = 1 << 20, SAFETENSORS_ALIGN = 8 };

#define SAFETENSORS_HASH_KEY "fnv1a"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the file's floats are copied as they are");

/* How many bytes the tensor has in a file; false if its shape is negative or the product overflows.
 */
bool safetensors_size(const safetensors_tensor *tensor, size_t element_bytes, size_t *size_bytes);

bool safetensors_printable(const char *name);

#endif
