/* The CPU device: matrix products and convolutions by oneDNN, the rest by loops of our own that the
 * compiler vectorises for each generation of processor. */
#ifndef MNIST_DDP_KERNELS_CPU_CPU_H
#define MNIST_DDP_KERNELS_CPU_CPU_H

#include "kernels/device.h"

/* Fills in dev->ops and dev->state. */
status cpu_device_create(int threads, device *dev);

const char *cpu_device_libraries(void); /* "oneDNN 2.6.3" */

#endif
