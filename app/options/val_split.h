/* The images that --val-split holds back from training. */
#ifndef MNIST_DDP_APP_OPTIONS_VAL_SPLIT_H
#define MNIST_DDP_APP_OPTIONS_VAL_SPLIT_H

#include "base/status.h"

#include <stdint.h>

/* How many of `images` they are. `split` is a number of images from 1 on, or a share below 1: then
 * as many as torch.utils.data.random_split gives the second part of [1 - split, split], which is
 * rounded down. 0: none. STATUS_INVALID if it is no whole number of images, a share of less than
 * one image, or leaves none to train on. */
status val_split_images(double split, uint32_t images, uint32_t *out);

/* The same as far as it is known without the number of images. */
status val_split_check(double split);

#endif
