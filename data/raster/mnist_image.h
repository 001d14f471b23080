/* A picture made into an image such as MNIST's are, by the steps that made those: the ink is cut
 * out, scaled into a box of 20x20 pixels with its proportions kept, and placed in 28x28 pixels with
 * its centre of mass in the middle (http://yann.lecun.com/exdb/mnist). */
#ifndef MNIST_DDP_DATA_RASTER_MNIST_IMAGE_H
#define MNIST_DDP_DATA_RASTER_MNIST_IMAGE_H

#include "data/idx.h"
#include "data/raster/raster_file.h"

#include <stdbool.h>

enum { MNIST_IMAGE_SIDE = IDX_SIDE, MNIST_IMAGE_PIXELS = IDX_PIXELS, MNIST_IMAGE_BOX = 20 };

/* Sets `out` (28, 28): 0 is background, 255 ink. What is ink, the dark or the bright, is told by
 * the border of the picture. The picture's pixels are overwritten. STATUS_INVALID if nothing is
 * drawn on it; `name` is for the message. */
status mnist_image_make(const char *name, raster *p, uint8_t out[MNIST_IMAGE_PIXELS]);

/* Whether such an image seems to show several digits: two pieces of ink of which one is more than
 * half as large as the other, or ink that is much wider than tall. */
bool mnist_image_has_several(const uint8_t image[MNIST_IMAGE_PIXELS]);

#endif
