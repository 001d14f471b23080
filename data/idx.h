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

#include <stddef.h>
#include <stdint.h>

typedef enum idx_kind { IDX_IMAGES, IDX_LABELS } idx_kind;

enum {
    IDX_SIDE = 28, /* of an image */
    IDX_PIXELS = IDX_SIDE * IDX_SIDE,
    IDX_CLASSES = 10,
    IDX_MAX_HEADER_BYTES = 16,
    IDX_MAX_BYTES = 1 << 30, /* of a whole file; MNIST's largest has 47 MB */
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

/* STATUS_INVALID unless the file has exactly the bytes that its header declares. */
status idx_size_check(const char *name, const idx_shape *shape, uint64_t actual_bytes);

/* STATUS_INVALID if one of the `count` labels, which begin at byte `offset`, is above 9. */
status idx_labels_check(const char *name, const uint8_t *labels, size_t count, size_t offset);

/* Sets `out` (idx_header_bytes(kind)) to the header of `count` 28x28 images or labels. */
void idx_header_write(idx_kind kind, uint32_t count, uint8_t *out);

#endif
