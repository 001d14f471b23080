/* A hash of eight bytes at a time, in four lanes that do not wait for each other. A lane's step is
 * that of FxHash (Firefox, rustc-hash). Finds accidental damage, not tampering; by byte order. */
#ifndef MNIST_DDP_BASE_LANE_HASH_H
#define MNIST_DDP_BASE_LANE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t lane_hash_step(uint64_t hash, uint64_t word)
{
    return ((hash << 29 | hash >> 35) ^ word) * 0x517cc1b727220a95u;
}

/* The hash of what `hash` stood for followed by these bytes, and how many they are; 0: none. */
static inline uint64_t lane_hash(uint64_t hash, const void *data, size_t size_bytes)
{
    const char *at = data;
    size_t left = size_bytes;
    uint64_t a = 1, b = 2, c = 3, w[4];
    hash += size_bytes;
    for (; left >= sizeof w; left -= sizeof w, at += sizeof w) {
        memcpy(w, at, sizeof w);
        a = lane_hash_step(a, w[0]);
        b = lane_hash_step(b, w[1]);
        c = lane_hash_step(c, w[2]);
        hash = lane_hash_step(hash, w[3]);
    }
    for (; left > 0; left--)
        hash = lane_hash_step(hash, (uint8_t)*at++);
    hash = lane_hash_step(lane_hash_step(lane_hash_step(hash, a), b), c);
    return hash ^ hash >> 32;
}

#endif
