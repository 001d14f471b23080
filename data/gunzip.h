/* An IDX file out of a gzip file, as a stream. */
#ifndef MNIST_DDP_DATA_GUNZIP_H
#define MNIST_DDP_DATA_GUNZIP_H

#include "base/status.h"
#include "data/idx.h"

#include <stdbool.h>
#include <stdint.h>

/* Do the first `count` bytes of a file say gzip? */
bool gunzip_magic(const uint8_t *bytes, size_t count);

/* An open gzip file, at its beginning. */
typedef struct gunzip_source {
    int fd;
    const char *name; /* for messages */
    uint64_t size_bytes;
    idx_kind kind; /* of its content */
} gunzip_source;

/* Decompresses `source` to the file `sink` (called `sink_name` in messages). The content is checked
 * as a stream: no more is written than its IDX header declares, and the file must be exactly one
 * gzip member with the right checksum.
 *
 * *sink_failed: the sink failed (a full disk), not the source.
 * STATUS_INVALID names the byte of the compressed file for gzip's errors, and of the decompressed
 * content for IDX's.
 */
status gunzip_idx(const gunzip_source *source, int sink, const char *sink_name, bool *sink_failed);

#endif
