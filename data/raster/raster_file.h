/* A picture out of a file that is not trusted. */
#ifndef MNIST_DDP_DATA_RASTER_RASTER_FILE_H
#define MNIST_DDP_DATA_RASTER_RASTER_FILE_H

#include "data/raster/raster.h"

#include <stddef.h>

enum { RASTER_FILE_MAX_BYTES = 128 << 20 };

/* Reads a PNG (any kind; what is transparent lies on white) or one of netpbm's six formats (PBM,
 * PGM, PPM, plain or binary). STATUS_INVALID names the file and what is wrong with it, of another
 * format how to convert it; STATUS_IO and STATUS_NO_MEMORY. */
status raster_file_read(const char *path, raster *out);

/* The same of a file's bytes in memory; `name` is for messages. */
status raster_file_decode(const char *name, const uint8_t *bytes, size_t size_bytes, raster *out);

#endif
