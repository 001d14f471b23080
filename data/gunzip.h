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
 * to `sink` (called `sink_name`). The content is checked while it comes: never more is written than
 * its IDX header declares, and the file must be one gzip member and nothing else, with right sums.
 *
 * *sink_failed tells whether it was the sink that failed (a full disk).
 * STATUS_INVALID names the byte of the compressed file for gzip's errors, and of the decompressed
 * content for IDX's.
 */
status gunzip_idx(int source, const char *name, uint64_t compressed_bytes, idx_kind kind, int sink,
                  const char *sink_name, bool *sink_failed);

#endif
