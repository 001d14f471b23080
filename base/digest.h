/* SHA-256 (FIPS 180-4), by libmd: whether a file is the one that is meant. */
#ifndef MNIST_DDP_BASE_DIGEST_H
#define MNIST_DDP_BASE_DIGEST_H

#include "base/status.h"

enum { DIGEST_TEXT_BYTES = 65 };

/* The SHA-256 of a regular file, in 64 small hexadecimal letters. STATUS_INVALID if it is none,
 * STATUS_IO. */
status digest_file(const char *path, char out[DIGEST_TEXT_BYTES]);

#endif
