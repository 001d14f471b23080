/* Pictures of any size: read from files, and made into images such as MNIST's. */
#ifndef MNIST_DDP_DATA_RASTER_H
#define MNIST_DDP_DATA_RASTER_H

#include "base/status.h"
#include "data/idx.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Pictures of any size as files: netpbm's and PNG. */

/* A picture of any size in grey. */

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

/* netpbm's formats: P1 and P4 (PBM), P2 and P5 (PGM), P3 and P6 (PPM); the first of each pair is
 * text. */

/* Do the first bytes of a file say P1 to P6? */
bool netpbm_magic(const uint8_t *bytes, size_t size_bytes);

/* The first picture of the file. Colours become their luminance (ITU-R BT.709's weights), 16 bits
 * are rounded to eight. Fails as raster_file_decode, and names the byte. */
status netpbm_decode(const char *name, const uint8_t *bytes, size_t size_bytes, raster *out);

/* A picture out of a file that is not trusted. */

enum { RASTER_FILE_MAX_BYTES = 128 << 20 };

/* Reads a PNG (any kind; what is transparent lies on white) or one of netpbm's six formats (PBM,
 * PGM, PPM, plain or binary). STATUS_INVALID names the file and what is wrong with it, of another
 * format how to convert it; STATUS_IO and STATUS_NO_MEMORY. */
status raster_file_read(const char *path, raster *out);

/* The same of a file's bytes in memory; `name` is for messages. */
status raster_file_decode(const char *name, const uint8_t *bytes, size_t size_bytes, raster *out);

/* A picture made into an image such as MNIST's are, by the steps that made those: the ink is cut
 * out, scaled into a box of 20x20 pixels with its proportions kept, and placed in 28x28 pixels with
 * its centre of mass in the middle (http://yann.lecun.com/exdb/mnist). */

enum { MNIST_IMAGE_SIDE = IDX_SIDE, MNIST_IMAGE_PIXELS = IDX_PIXELS, MNIST_IMAGE_BOX = 20 };

/* Sets `out` (28, 28): 0 is background, 255 ink. What is ink, the dark or the bright, is told by
 * the border of the picture. The picture's pixels are overwritten. STATUS_INVALID if nothing is
 * drawn on it; `name` is for the message. */
status mnist_image_make(const char *name, raster *p, uint8_t out[MNIST_IMAGE_PIXELS]);

/* Whether such an image seems to show several digits: two pieces of ink of which one is more than
 * half as large as the other, or ink that is much wider than tall. */
bool mnist_image_has_several(const uint8_t image[MNIST_IMAGE_PIXELS]);

#endif
