/* The 16-bit copies of parameter arenas: one per arena that begin_forward has seen. */
#ifndef MNIST_DDP_KERNELS_CUDA_HALF_COPY_H
#define MNIST_DDP_KERNELS_CUDA_HALF_COPY_H

#include "kernels/cuda/cuda_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Frees the copy of the arena at `memory`, if there is one. */
void cuda_half_copy_drop(device *dev, const void *memory);

/* cast.cu: count floats to the type of activations, rounded to nearest even. */
status cuda_cast(device *dev, const float *from, size_t count, void *to);

#ifdef __cplusplus
}
#endif
#endif
