/* The devices with host memory, and what they share: memory, gather, cross entropy, clipping. */
#ifndef MNIST_DDP_KERNELS_HOST_H
#define MNIST_DDP_KERNELS_HOST_H

#include "kernels/ops.h"

/* As in device_kind. cpu: STATUS_INVALID if the processor lacks the instructions asked for.
 * reference: one thread, whatever the options say. */
status cpu_device_create(const device_options *options, device *dev);
status reference_device_create(const device_options *options, device *dev);

/* What the cpu device computes with by this --isa: "avx512 kernels". NULL: the processor lacks
 * them. */
const char *cpu_device_kernels(const char *isa);

alloc_op host_alloc;
free_op host_free;
copy_op host_copy;
synchronize_op host_synchronize;
begin_step_op host_begin_step;
gather_op host_gather;
begin_forward_op host_begin_forward;
cross_entropy_op host_cross_entropy;
clip_gradients_op host_clip_gradients;

/* The rows of a table of device_ops that all of these devices have. */
#define HOST_OPS \
    .alloc = host_alloc, .free = host_free, .upload = host_copy, .download = host_copy, \
    .copy = host_copy, .synchronize = host_synchronize, .begin_step = host_begin_step, \
    .begin_forward = host_begin_forward, .cross_entropy = host_cross_entropy

#endif
