/* Bytes as text: SHA-256, and base64. */
#ifndef MNIST_DDP_BASE_DIGEST_H
#define MNIST_DDP_BASE_DIGEST_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

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

#endif
