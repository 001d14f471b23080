/* What all devices whose memory is the host's share: memory, the input, and the end of the network.
 */
#ifndef MNIST_DDP_KERNELS_HOST_H
#define MNIST_DDP_KERNELS_HOST_H

#include "kernels/ops.h"

/* The entries of device_ops with these names. */
status host_alloc(device *dev, size_t size_bytes, void **out);
void host_free(device *dev, void *memory);
status host_copy(device *dev, void *dst, const void *src, size_t size_bytes);
status host_gather(device *dev, const uint8_t *images, const uint8_t *labels,
                   const uint32_t *indices, int n, int pixels, float *x, uint8_t *labels_out);
status host_cross_entropy(device *dev, const float *logits, const uint8_t *labels, int n,
                          int classes, float grad_scale, double *loss_sum, int64_t *correct,
                          float *dlogits);

#endif
