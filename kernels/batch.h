/* One batch in a device's memory: data/ fills it, model/ reads it. */
#ifndef MNIST_DDP_KERNELS_BATCH_H
#define MNIST_DDP_KERNELS_BATCH_H

#include <stdint.h>

typedef struct batch {
    int n;                 /* samples, 1 .. the capacity that the network was made for */
    const float *x;        /* (n, 1, 28, 28) normalised pixels, plain order */
    const uint8_t *labels; /* (n), each < 10 */
    const uint32_t
        *samples;     /* (n) positions in the data set: they name each sample's dropout mask */
    int epoch;        /* likewise */
    float grad_scale; /* factor of each sample's loss gradient: world_size / the samples of
                         this optimizer step over all ranks. DDP multiplies by 1 / world_size,
                         so the step's gradient is the exact mean also where batches differ */
} batch;

#endif
