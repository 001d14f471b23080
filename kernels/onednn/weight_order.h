/* A copy of a convolution's weights from PyTorch's order to a primitive's, or back. */
#ifndef MNIST_DDP_KERNELS_ONEDNN_WEIGHT_ORDER_H
#define MNIST_DDP_KERNELS_ONEDNN_WEIGHT_ORDER_H

#include "kernels/onednn/dnnl_api.h"
#include "kernels/onednn/state.h"

typedef enum weight_way { WEIGHT_TO_PRIMITIVE, WEIGHT_TO_PLAIN } weight_way;

typedef struct weight_order {
    onednn_state *state;
    dnnl_primitive_t handle;
    dnnl_memory_t from, to;
} weight_order;

/* `ours` is the primitive's. weight_order_close accepts a zeroed one, and one whose opening
 * failed. */
status weight_order_open(onednn_state *state, const conv2d_shape *shape, weight_way way,
                         dnnl_api_md ours, weight_order *out);
void weight_order_close(weight_order *w);

/* Not while the team works. */
status weight_order_copy(const weight_order *w, const float *from, float *to);

#endif
