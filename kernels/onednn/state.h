/* What the files of the oneDNN device share: its state, its wrapper around the library, and its
 * operations.
 *
 * Activations are (N, H, W, C) with the channels innermost: the one order in which oneDNN has
 * convolutions for every processor. Weights and gradients are in PyTorch's order, but for the
 * columns of a linear layer that reads a flattened activation. */
#ifndef MNIST_DDP_KERNELS_ONEDNN_STATE_H
#define MNIST_DDP_KERNELS_ONEDNN_STATE_H

#include "base/thread.h"
#include "kernels/ops.h"

#include <dnnl.h>

typedef struct onednn_state {
    device *dev; /* whose state this is */
    team *team;
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* one per member of the team */
    void **scratch;         /* likewise: memory that the member's current primitive may use */
    size_t scratch_bytes;   /* of each */
} onednn_state;

static inline onednn_state *onednn_of(device *dev)
{
    return dev->state;
}

/* oneDNN's code as a status: TRY(ONEDNN_CALL(dnnl_stream_wait(stream))). */
#define ONEDNN_CALL(call) onednn_check((call), #call, __FILE__, __LINE__)
status onednn_check(dnnl_status_t code, const char *call, const char *file, int line);

/* Makes every member's scratch memory at least this large. Not while the team works. */
status onednn_reserve_scratch(onednn_state *state, size_t size_bytes);

/* Rows of device_ops: conv2d.c, pool.c, linear.c, optimizer.c. */
conv2d_create_op onednn_conv2d_create;
conv2d_destroy_op onednn_conv2d_destroy;
conv2d_import_op onednn_conv2d_import;
conv2d_export_op onednn_conv2d_export;
conv2d_forward_op onednn_conv2d_forward;
conv2d_backward_weights_op onednn_conv2d_backward_weights;
conv2d_backward_data_op onednn_conv2d_backward_data;

pool_forward_op onednn_pool_forward;
pool_backward_op onednn_pool_backward;

linear_create_op onednn_linear_create;
linear_destroy_op onednn_linear_destroy;
linear_import_op onednn_linear_import;
linear_export_op onednn_linear_export;
linear_forward_op onednn_linear_forward;
linear_backward_weights_op onednn_linear_backward_weights;
linear_backward_data_op onednn_linear_backward_data;

sgd_step_op onednn_sgd_step;
adam_step_op onednn_adam_step;
adadelta_step_op onednn_adadelta_step;

#endif
