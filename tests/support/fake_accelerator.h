/* A device with memory and a queue of its own, without arithmetic: enqueued copies are made as late
 * as their order allows, and pinned memory is accounted for. */
#ifndef MNIST_DDP_TESTS_SUPPORT_FAKE_ACCELERATOR_H
#define MNIST_DDP_TESTS_SUPPORT_FAKE_ACCELERATOR_H

#include "kernels/device.h"

/* For ranks_options. */
status fake_accelerator_open(int rank, device **out);

/* Aborts if memory is still pinned. */
void fake_accelerator_close(device *dev);

/* Enqueues data[i] = value for `count` floats: stands for a kernel. */
status fake_accelerator_fill(device *dev, float *data, size_t count, float value);

/* Regions that are pinned now, and copies through host memory that was not. */
int fake_accelerator_pinned(const device *dev);
int fake_accelerator_strays(const device *dev);

#endif
