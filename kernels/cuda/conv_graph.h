/* One pass of a convolution as cuDNN's graph interface describes it. */
#ifndef MNIST_DDP_KERNELS_CUDA_CONV_GRAPH_H
#define MNIST_DDP_KERNELS_CUDA_CONV_GRAPH_H

#include "kernels/cuda/cuda_call.h"
#include "kernels/ops.h"

/* Of a descriptor of cuDNN's graph interface, which is made, given its attributes and finalized at
 * once. */
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

typedef enum conv_pass {
    CONV_PASS_FORWARD_BIAS, /* y = conv(x, w) + bias */
    CONV_PASS_FORWARD,      /* y = conv(x, w) */
    CONV_PASS_DATA,         /* x set: the gradient of x from that of y */
    CONV_PASS_WEIGHTS,      /* w set: the gradient of w from x and the gradient of y */
    CONV_PASSES,
} conv_pass;

/* The tensors' unique ids in the graph and its execution. */
enum { CONV_X = 1, CONV_W, CONV_Y, CONV_BIAS, CONV_SUM };

enum { CONV_ALIGNMENT = 16, CONV_GRAPH_PARTS = 12 }; /* bytes; descriptors below a graph */

typedef struct conv_graph {
    cudnnBackendDescriptor_t graph, parts[CONV_GRAPH_PARTS];
    int count; /* of parts */
} conv_graph;

/* x (n, C, H, W), w (O, C, K, K), y (n, O, OH, OW), bias (1, O, 1, 1): all of `type`; products are
 * summed in float32, and bias is added there. */
typedef struct conv_work {
    conv2d_shape shape;
    cudnnDataType_t type;
    conv_pass pass;
    int n;
    bool planes; /* in memory as written here; false: channels innermost, as the device has them */
} conv_work;

/* handle NULL: to no device. */
status conv_graph_init(const conv_work *work, cudnnHandle_t handle, conv_graph *out);

/* Accepts an empty one. */
void conv_graph_close(conv_graph *g);

#endif
