/* Descriptors of cuDNN's graph interface: made, given their attributes and finalized at once. */
#ifndef MNIST_DDP_KERNELS_CUDA_CONV_DESCRIPTOR_H
#define MNIST_DDP_KERNELS_CUDA_CONV_DESCRIPTOR_H

#include "kernels/cuda/cuda_call.h"

typedef struct conv_attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count; /* 0: the attribute is left out */
    const void *value;
} conv_attribute;

/* STATUS_DEVICE with cuDNN's reason if it refuses. */
status conv_descriptor_make(cudnnBackendDescriptorType_t type, const conv_attribute *attributes,
                            int count, cudnnBackendDescriptor_t *out);

/* Accepts NULL. */
void conv_descriptor_destroy(cudnnBackendDescriptor_t descriptor);

#endif
