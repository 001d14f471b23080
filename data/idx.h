/* The IDX format of MNIST's files: a big-endian header, then unsigned bytes.
 *
 *   images  00 00 08 03  count  rows  columns  (count, rows, columns) pixels
 *   labels  00 00 08 01  count                 (count) labels
 *
 * A file is not trusted: every error names the file (`name`), the byte and what was expected there.
 */
#ifndef MNIST_DDP_DATA_IDX_H
#define MNIST_DDP_DATA_IDX_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum idx_kind { IDX_IMAGES, IDX_LABELS } idx_kind;

enum {
    IDX_SIDE = 28, /* pixels */
    IDX_PIXELS = IDX_SIDE * IDX_SIDE,
    IDX_CLASSES = 10,
    IDX_MAX_HEADER_BYTES = 16,
    IDX_MAX_BYTES = 1 << 30, /* a whole file at most; MNIST's largest has 47 MB */
};

/* What a header declares, checked. */
typedef struct idx_shape {
    uint32_t count;      /* >= 1 */
    size_t header_bytes; /* the elements begin here */
    size_t total_bytes;  /* the exact size of the file, at most IDX_MAX_BYTES */
} idx_shape;

size_t idx_header_bytes(idx_kind kind);

/* Reads a header from the first `available_bytes` of a file, which may be more than the header.
 * STATUS_INVALID for anything but 28x28 images or labels of unsigned bytes. */
status idx_header_read(const char *name, idx_kind kind, const uint8_t *bytes,
                       size_t available_bytes, idx_shape *out);

/* Sets `out` (idx_header_bytes(kind)) to the header of `count` 28x28 images or labels. */
void idx_header_write(idx_kind kind, uint32_t count, uint8_t *out);

/* Decompresses the gzip file `path`, whose content is of `kind`, to the file `sink` (called
 * `sink_name` in messages). No more is written than the content's IDX header declares, and the file
 * must be exactly one gzip member with the right checksum.
 *
 * *sink_failed: the sink failed (a full disk), not the source.
 * STATUS_INVALID names the byte of the compressed file for gzip's errors, and of the decompressed
 * content for IDX's.
 */
status gunzip_idx(const char *path, idx_kind kind, int sink, const char *sink_name,
                  bool *sink_failed);

/* An IDX file in memory, plain or gzip: mapped, checked and read-only. */

enum { IDX_FILE_REASON_BYTES = 256 };

typedef struct idx_file {
    uint32_t count;
    const uint8_t *elements; /* (count, 28, 28) pixels or (count) labels, inside the mapping */
    void *mapping;           /* NULL: nothing is open */
    size_t mapping_bytes;
    uint64_t version; /* what stat says of the file, as a number; 0: it is too new to tell */
    char uncached[IDX_FILE_REASON_BYTES]; /* why a gzip file was decompressed into this process's
                                             memory and is not shared; "": it was not */
} idx_file;

/* Maps a plain file in place. A gzip file (by its content, not its name) is decompressed into the
 * cache folder first, unless that was done before: the copy's name holds the original's path, size
 * and time. Processes that want the same copy wait for the one that makes it. If the cache cannot
 * be written, or is locked for over a minute, the copy is made in this process's memory.
 *
 * STATUS_INVALID for content and for folders and the like; STATUS_IO. */
status idx_file_open(const char *path, idx_kind kind, idx_file *out);

/* Accepts an empty one. */
void idx_file_close(idx_file *file);

#endif
