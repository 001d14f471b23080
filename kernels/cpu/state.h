/* What the CPU device's files share: its state and its operations. */
#ifndef MNIST_DDP_KERNELS_CPU_STATE_H
#define MNIST_DDP_KERNELS_CPU_STATE_H

#include "base/thread.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/ops.h"

typedef struct cpu_state {
    device *dev; /* whose state this is */
    team *team;
    const vector_ops *vec;
    bool dense;     /* no zeros are left out */
    float *scratch; /* the operation's under way: what it leaves there, the next may overwrite */
    size_t scratch_floats;
} cpu_state;

/* In a trace: how many of a hundred elements of a layer's input, or of a block's gradients, are
 * multiplied. */
#define CPU_NONZERO "nonzero_percent"

static inline cpu_state *cpu_of(device *dev)
{
    return dev->state;
}

/* Makes the scratch memory at least this large. Not in an operation. */
status cpu_reserve_scratch(cpu_state *cpu, size_t floats);

/* Rows of device_ops: conv_block.c, linear.c. */
conv_block_create_op cpu_conv_block_create;
conv_block_destroy_op cpu_conv_block_destroy;
conv_block_import_op cpu_conv_block_import;
conv_block_export_op cpu_conv_block_export;
conv_block_forward_op cpu_conv_block_forward;
conv_block_backward_op cpu_conv_block_backward;

linear_create_op cpu_linear_create;
linear_destroy_op cpu_linear_destroy;
linear_import_op cpu_linear_import;
linear_export_op cpu_linear_export;
linear_forward_op cpu_linear_forward;
linear_finish_op cpu_linear_finish;
linear_backward_weights_op cpu_linear_backward_weights;
linear_backward_data_op cpu_linear_backward_data;

#endif
