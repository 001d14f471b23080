/* MD5 (RFC 1321) and SHA-256 (FIPS 180-4) of files, by libmd: whether a file is the one that is
 * meant. MD5 tells of accidents only; who wants to can make two contents with one MD5. */
#ifndef MNIST_DDP_BASE_DIGEST_H
#define MNIST_DDP_BASE_DIGEST_H

#include "base/status.h"

#include <md5.h>
#include <sha2.h>
#include <stddef.h>

typedef enum digest_kind { DIGEST_MD5, DIGEST_SHA256 } digest_kind;

enum { DIGEST_TEXT_BYTES = SHA256_DIGEST_STRING_LENGTH };

typedef struct digest {
    digest_kind kind;
    union {
        MD5_CTX md5;
        SHA2_CTX sha256;
    };
} digest;

void digest_begin(digest_kind kind, digest *out);
void digest_add(digest *d, const void *data, size_t size_bytes);

/* In small hexadecimal letters: 32 of MD5, 64 of SHA-256. */
void digest_end(digest *d, char out[DIGEST_TEXT_BYTES]);

/* The digest of a regular file. STATUS_INVALID if it is none, STATUS_IO. */
status digest_file(digest_kind kind, const char *path, char out[DIGEST_TEXT_BYTES]);

/* "MD5" or "SHA-256". */
const char *digest_name(digest_kind kind);

#endif
