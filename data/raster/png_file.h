/* PNG files, by libpng. */
#ifndef MNIST_DDP_DATA_RASTER_PNG_FILE_H
#define MNIST_DDP_DATA_RASTER_PNG_FILE_H

#include "data/raster/raster.h"

#include <stdbool.h>

/* Do the first bytes of a file say PNG? */
bool png_file_magic(const uint8_t *bytes, size_t size_bytes);

/* Of any colour type and depth, interlaced or not; what is transparent lies on white. Fails as
 * raster_file_decode; a file that was cut off is refused. */
status png_file_decode(const char *name, const uint8_t *bytes, size_t size_bytes, raster *out);

#endif
