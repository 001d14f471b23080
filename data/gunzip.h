/* An IDX file out of a gzip file, as a stream. */
#ifndef MNIST_DDP_DATA_GUNZIP_H
#define MNIST_DDP_DATA_GUNZIP_H

#include "base/status.h"
#include "data/idx.h"

#include <stdbool.h>
#include <stdint.h>

/* Do the first `count` bytes of a file say gzip? */
bool gunzip_magic(const uint8_t *bytes, size_t count);

/* Decompresses the gzip file `source` (from its position, `compressed_bytes` long, called `name`)
 * to `sink` (called `sink_name`). The content is checked as a stream: no more is written than its
 * IDX header declares, and the file must be exactly one gzip member with the right checksum.
 *
 * *sink_failed tells whether it was the sink that failed (a full disk). STATUS_INVALID names the
 * byte of the compressed file for gzip's errors, and of the decompressed content for IDX's.
 */
status gunzip_idx(int source, const char *name, uint64_t compressed_bytes, idx_kind kind, int sink,
                  const char *sink_name, bool *sink_failed);

#endif
