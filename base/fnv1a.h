/* FNV-1a, 64 bits: finds accidental damage, not tampering. */
#ifndef MNIST_DDP_BASE_FNV1A_H
#define MNIST_DDP_BASE_FNV1A_H

#include <stddef.h>
#include <stdint.h>

#define FNV1A_START 0xcbf29ce484222325u

/* The hash of what `hash` stood for followed by these bytes; FNV1A_START stands for none. */
static inline uint64_t fnv1a(uint64_t hash, const void *data, size_t size_bytes)
{
    const uint8_t *bytes = (const uint8_t *)data; /* also C++ */
    for (size_t i = 0; i < size_bytes; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

#endif
