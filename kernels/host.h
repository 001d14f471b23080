/* What devices with host memory share: memory, gather, cross entropy. */
#ifndef MNIST_DDP_KERNELS_HOST_H
#define MNIST_DDP_KERNELS_HOST_H

#include "kernels/ops.h"

/* The entries of device_ops with these names. */
status host_alloc(device *dev, size_t size_bytes, void **out);
void host_free(device *dev, void *memory);
status host_copy(device *dev, void *dst, const void *src, size_t size_bytes);
status host_synchronize(device *dev);
status host_begin_step(device *dev, const step_plan *plan, step_state *state, float *stop_flag);
status host_gather(device *dev, const gather_source *source, const step_state *state,
                   uint32_t offset, int n, float *x, uint8_t *labels_out, uint32_t *samples);
status host_begin_forward(device *dev, const float *parameters, size_t count);
status host_cross_entropy(device *dev, const float *logits, const uint8_t *labels, int n,
                          int classes, const step_state *state, score *totals, float *dlogits);

#endif
