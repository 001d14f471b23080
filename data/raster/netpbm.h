/* netpbm's formats: P1 and P4 (PBM), P2 and P5 (PGM), P3 and P6 (PPM); the first of each pair is
 * text. */
#ifndef MNIST_DDP_DATA_RASTER_NETPBM_H
#define MNIST_DDP_DATA_RASTER_NETPBM_H

#include "data/raster/raster.h"

#include <stdbool.h>

/* Do the first bytes of a file say P1 to P6? */
bool netpbm_magic(const uint8_t *bytes, size_t size_bytes);

/* The first picture of the file. Colours become their luminance (ITU-R BT.709's weights), 16 bits
 * are rounded to eight. Fails as raster_file_decode, and names the byte. */
status netpbm_decode(const char *name, const uint8_t *bytes, size_t size_bytes, raster *out);

#endif
