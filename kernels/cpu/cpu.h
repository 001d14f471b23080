/* The CPU device: loops that the compiler vectorises for each generation of processor. */
#ifndef MNIST_DDP_KERNELS_CPU_CPU_H
#define MNIST_DDP_KERNELS_CPU_CPU_H

#include "kernels/device.h"

#include <stdbool.h>

/* Whether it has kernels for this processor. */
bool cpu_device_is_here(void);

/* As in device_kind. STATUS_INVALID if the processor lacks the instructions asked for. */
status cpu_device_create(const device_options *options, device *dev);

/* What it computes with here, unless --isa says otherwise: "avx512 kernels". */
const char *cpu_device_kernels(void);

#endif
