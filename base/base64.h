/* Base64 (RFC 4648, section 4): bytes as letters, with = at the end. */
#ifndef MNIST_DDP_BASE_BASE64_H
#define MNIST_DDP_BASE_BASE64_H

#include <stdbool.h>
#include <stddef.h>

/* Room for the text of `n` bytes, and its zero. */
#define BASE64_TEXT_BYTES(n) (((n) + 2) / 3 * 4 + 1)

/* Sets `out` (BASE64_TEXT_BYTES(n)) to the text of `n` bytes. */
void base64_write(const void *bytes, size_t n, char *out);

/* Sets `out`, which has room for 3 bytes for every 4 letters of the text, and *n. false, and
 * `out` is undefined, if the text is not base64 to its end. */
bool base64_read(const char *text, void *out, size_t *n);

#endif
