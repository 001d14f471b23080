/* The CPU device: loops that the compiler vectorises for each generation of processor. */
#ifndef MNIST_DDP_KERNELS_CPU_CPU_H
#define MNIST_DDP_KERNELS_CPU_CPU_H

#include "kernels/device.h"

/* As in device_kind. STATUS_INVALID if the processor lacks the instructions asked for. */
status cpu_device_create(const device_options *options, device *dev);

/* What it computes with by this --isa: "avx512 kernels". NULL: the processor lacks them. */
const char *cpu_device_kernels(const char *isa);

#endif
