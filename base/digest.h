/* Bytes as text, base64 and SHA-256, and as a number, by two hashes. */
#ifndef MNIST_DDP_BASE_DIGEST_H
#define MNIST_DDP_BASE_DIGEST_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Base64 (RFC 4648, section 4): bytes as letters, with = at the end. */

/* Room for the text of `n` bytes, and its zero. */
#define BASE64_TEXT_BYTES(n) (((n) + 2) / 3 * 4 + 1)

/* Sets `out` (BASE64_TEXT_BYTES(n)) to the text of `n` bytes. */
void base64_write(const void *bytes, size_t n, char *out);

/* Sets `out`, which has room for 3 bytes for every 4 letters of the text, and *n. false, and
 * `out` is undefined, if the text is not base64 to its end. */
bool base64_read(const char *text, void *out, size_t *n);

/* SHA-256 (FIPS 180-4), by libmd: whether a file is the one that is meant. */

enum { DIGEST_TEXT_BYTES = 65 };

/* The SHA-256 of a regular file, in 64 small hexadecimal letters. STATUS_INVALID if it is none,
 * STATUS_IO. */
status digest_file(const char *path, char out[DIGEST_TEXT_BYTES]);

/* FNV-1a, 64 bits: finds accidental damage, not tampering. */

#define FNV1A_START 0xcbf29ce484222325u

/* The hash of what `hash` stood for followed by these bytes; FNV1A_START stands for none. */
static inline uint64_t fnv1a(uint64_t hash, const void *data, size_t size_bytes)
{
    const uint8_t *bytes = (const uint8_t *)data; /* also C++ */
    for (size_t i = 0; i < size_bytes; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

/* A hash of eight bytes at a time, in four lanes that do not wait for each other. A lane's step is
 * that of FxHash (Firefox, rustc-hash). Finds accidental damage, not tampering; by byte order. */

static inline uint64_t lane_hash_step(uint64_t hash, uint64_t word)
{
    return ((hash << 29 | hash >> 35) ^ word) * 0x517cc1b727220a95u;
}

/* The hash of what `hash` stood for followed by these bytes, and how many they are; 0: none. */
static inline uint64_t lane_hash(uint64_t hash, const void *data, size_t size_bytes)
{
    const char *at = (const char *)data; /* also C++ */
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
