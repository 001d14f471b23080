/* The weights of a network's first layer as pictures: what it looks for in an image. */
#ifndef MNIST_DDP_APP_TRAIN_FILTERS_H
#define MNIST_DDP_APP_TRAIN_FILTERS_H

#include "base/status.h"
#include "model/network.h"

#include <jansson.h>

enum { FILTERS_MAX = 32 }; /* that are shown; a layer may have more */

/* Adds "filters" to the object, with the first FILTERS_MAX outputs of the first layer:
 *
 *   {"parameter": "conv1.weight", "outputs": 32, "side": 3, "scales": [0.41, ..],
 *    "pixels": ["80ff..", ..]}
 *
 * A picture has side x side pixels, row by row, two hexadecimal digits each. A weight is
 * (pixel - 128) / 127 * scale, and scale is the greatest magnitude in the picture. A weight that is
 * not finite is 128, and its picture's scale is null. */
status filters_add(json_t *object, network *net);

#endif
