/* How training images are changed: --augment. */
#ifndef MNIST_DDP_APP_OPTIONS_AUGMENT_H
#define MNIST_DDP_APP_OPTIONS_AUGMENT_H

#include "base/status.h"

/* How far, at most: as in kernels/augmentation.h. All 0: not at all. */
typedef struct augment {
    double shift, rotate, scale;
} augment;

/* "shift=2,rotate=10,scale=0.1", any of them; NULL: none. STATUS_INVALID with what is allowed. */
status augment_parse(const char *text, augment *out);

#endif
