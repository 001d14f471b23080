/* One batch in a device's memory: data/ fills it, model/ reads it. */
#ifndef MNIST_DDP_KERNELS_BATCH_H
#define MNIST_DDP_KERNELS_BATCH_H

#include "kernels/step.h"

#include <stdint.h>

typedef struct batch {
    int n;                 /* samples, 1 .. the capacity that the network was made for */
    int before;            /* samples of the same batch in its pieces so far; 0: it begins here */
    const float *x;        /* (n, 1, 28, 28) normalised pixels, plain order, device_element_bytes()
                              (kernels/device.h) each */
    const uint8_t *labels; /* (n), each < 10 */
    const uint32_t
        *samples; /* (n) positions in the data set: they name each sample's dropout mask */
    const step_state *state; /* () of the step that this batch belongs to */
} batch;

#endif
