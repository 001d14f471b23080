/* Algorithm selection of NVIDIA's libraries: what they chose for a device's work, or refused. For
 * reports. */
#ifndef MNIST_DDP_KERNELS_CUDA_CHOICES_H
#define MNIST_DDP_KERNELS_CUDA_CHOICES_H

#include "kernels/cuda/cuda_state.h"

/* Adds it, unless there is one with the same library, subject, pass and batch. *is_new may be
 * NULL. */
status cuda_note_choice(device *dev, const device_choice *choice, bool *is_new);

/* The entry of the device's table. */
bool cuda_choice(const device *dev, int index, device_choice *out);

void cuda_forget_choices(device *dev);

#endif
