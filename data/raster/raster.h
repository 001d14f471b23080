/* A picture of any size in grey. */
#ifndef MNIST_DDP_DATA_RASTER_RASTER_H
#define MNIST_DDP_DATA_RASTER_RASTER_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum {
    RASTER_MAX_SIDE = 16384,
    RASTER_MAX_PIXELS = 32 << 20, /* bounds the memory that one picture takes */
};

typedef struct raster {
    int width, height;
    uint8_t *grey; /* (height, width): 0 is black, 255 white */
} raster;

/* Checks the sides and takes memory for the pixels, which are not set. STATUS_INVALID and
 * STATUS_NO_MEMORY; `name` is for messages. */
status raster_make(const char *name, uint64_t width, uint64_t height, raster *out);

/* Accepts a zeroed one. */
void raster_free(raster *p);

#endif
