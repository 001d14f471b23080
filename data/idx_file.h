/* An IDX file in memory, plain or gzip: mapped, checked and read-only. */
#ifndef MNIST_DDP_DATA_IDX_FILE_H
#define MNIST_DDP_DATA_IDX_FILE_H

#include "base/status.h"
#include "data/idx.h"

#include <stddef.h>
#include <stdint.h>

enum { IDX_FILE_REASON_BYTES = 256 };

typedef struct idx_file {
    uint32_t count;
    const uint8_t *elements; /* (count, 28, 28) pixels or (count) labels, inside the mapping */
    void *mapping;           /* NULL: nothing is open */
    size_t mapping_bytes;
    uint64_t version; /* of what is mapped, by all that stat says of it; 0: it is too new to tell */
    char uncached[IDX_FILE_REASON_BYTES]; /* why a gzip file was decompressed into this process's
                                             memory and is not shared; "": it was not */
} idx_file;

/* Maps a plain file in place. A gzip file (by its content, not its name) is decompressed into the
 * cache folder first, unless that was done before: the copy's name holds the original's path, size
 * and time. Processes that want the same copy wait for the one that makes it. If the cache cannot
 * be written, or is locked for over a minute, the copy is made in this process's memory.
 *
 * STATUS_INVALID for content (idx.h, gunzip.h) and for folders and the like; STATUS_IO. */
status idx_file_open(const char *path, idx_kind kind, idx_file *out);

/* Maps what an open plain file holds; `name` is for messages. The caller keeps `fd`. */
status idx_file_map(int fd, const char *name, idx_kind kind, idx_file *out);

/* Accepts an empty one. */
void idx_file_close(idx_file *file);

#endif
