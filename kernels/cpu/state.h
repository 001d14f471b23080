/* What the CPU device's files share: its state, its wrapper around oneDNN, and its operations. */
#ifndef MNIST_DDP_KERNELS_CPU_STATE_H
#define MNIST_DDP_KERNELS_CPU_STATE_H

#include "base/team.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/ops.h"

#include <dnnl.h>

typedef struct cpu_state {
    device *dev; /* whose state this is */
    team *team;
    const vector_ops *vec;
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* one per member of the team */
    void **scratch;         /* likewise: memory that the member's current primitive may use */
    size_t scratch_bytes;   /* of each */
} cpu_state;

static inline cpu_state *cpu_of(device *dev)
{
    return dev->state;
}

/* oneDNN's code as a status: TRY(ONEDNN_CALL(dnnl_stream_wait(stream))). */
#define ONEDNN_CALL(call) onednn_check((call), #call, __FILE__, __LINE__)
status onednn_check(dnnl_status_t code, const char *call, const char *file, int line);

/* Makes every member's scratch memory at least this large. Not while the team works. */
status cpu_reserve_scratch(cpu_state *cpu, size_t size_bytes);

/* Rows of device_ops: conv2d.c, pool.c, linear.c. */
conv2d_create_op cpu_conv2d_create;
conv2d_destroy_op cpu_conv2d_destroy;
conv2d_import_op cpu_conv2d_import;
conv2d_export_op cpu_conv2d_export;
conv2d_forward_op cpu_conv2d_forward;
conv2d_backward_weights_op cpu_conv2d_backward_weights;
conv2d_backward_data_op cpu_conv2d_backward_data;

pool_forward_op cpu_pool_forward;
pool_backward_op cpu_pool_backward;

linear_create_op cpu_linear_create;
linear_destroy_op cpu_linear_destroy;
linear_import_op cpu_linear_import;
linear_export_op cpu_linear_export;
linear_forward_op cpu_linear_forward;
linear_backward_weights_op cpu_linear_backward_weights;
linear_backward_data_op cpu_linear_backward_data;

#endif
