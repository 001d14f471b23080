/* A picture of any size in grey, out of a file that is not trusted. */
#ifndef MNIST_DDP_DATA_RASTER_RASTER_H
#define MNIST_DDP_DATA_RASTER_RASTER_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum {
    RASTER_MAX_SIDE = 16384,
    RASTER_MAX_PIXELS = 32 << 20, /* bounds the memory that one picture takes */
    RASTER_MAX_FILE_BYTES = 128 << 20,
};

typedef struct raster {
    int width, height;
    uint8_t *grey; /* (height, width): 0 is black, 255 white */
} raster;

/* Reads a PNG (any kind; what is transparent lies on white) or one of netpbm's six formats (PBM,
 * PGM, PPM, plain or binary). STATUS_INVALID names the file and what is wrong with it, of another
 * format how to convert it; STATUS_IO and STATUS_NO_MEMORY. */
status raster_read(const char *path, raster *out);

/* The same of a file's bytes in memory; `name` is for messages. */
status raster_decode(const char *name, const uint8_t *bytes, size_t size_bytes, raster *out);

/* Accepts a zeroed one. */
void raster_free(raster *p);

/* For decoders: checks the sides and takes memory for the pixels, which are not set. */
status raster_make(const char *name, uint64_t width, uint64_t height, raster *out);

#endif
