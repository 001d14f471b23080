/* The CPU device: oneDNN for matrix products and convolutions, our own loops for the rest. The
 * compiler vectorises those for each generation of processor. */
#ifndef MNIST_DDP_KERNELS_CPU_CPU_H
#define MNIST_DDP_KERNELS_CPU_CPU_H

#include "kernels/device.h"

/* As in device_kind. */
status cpu_device_create(const device_options *options, device *dev);

const char *cpu_device_libraries(void); /* "oneDNN 2.6.3" */

#endif
