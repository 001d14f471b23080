/* The kinds of devices that there are here, and a device of one. */
#ifndef MNIST_DDP_KERNELS_DEVICE_KIND_H
#define MNIST_DDP_KERNELS_DEVICE_KIND_H

#include "kernels/device.h"

/* A device of the kind that options->name says; device_destroy ends it. STATUS_INVALID, with the
 * valid values, for an unknown name, index or precision; STATUS_DEVICE if the accelerator does not
 * work. */
status device_create(const device_options *options, device **out);

/* How many GPUs "cuda" has here, and unless `model` (DEVICE_MODEL_BYTES) is NULL what the first one
 * is: "NVIDIA H200". If there are none: STATUS_INVALID or STATUS_DEVICE, with the reason. */
status device_count(int *out, char *model);

/* The same for devices that compute the same bits: "cpu", "cuda NVIDIA H200"; for cpu's kernels
 * without a fused multiply-add "sse2 kernels". options->name: of a kind. */
status device_title(const device_options *options, char out[DEVICE_TEXT_BYTES]);

/* Whether "auto" means cuda here. Quick if no driver is installed. */
bool device_auto_is_cuda(void);

/* What the cpu device computes with: "avx512 kernels". */
const char *device_libraries(void);

#endif
