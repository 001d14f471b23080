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

/* The entries of device_ops with these names; conv2d.c, pool.c, linear.c. */
status cpu_conv2d_create(device *dev, const conv2d_shape *shape, int max_n, conv2d **out);
void cpu_conv2d_destroy(conv2d *plan);
status cpu_conv2d_import(conv2d *plan, const float *plain, float *weight);
status cpu_conv2d_export(conv2d *plan, const float *weight, float *plain);
status cpu_conv2d_forward(conv2d *plan, int n, const float *x, const float *weight,
                          const float *bias, float *y);
status cpu_conv2d_backward_weights(conv2d *plan, int n, const float *x, const float *y,
                                   const float *dy, float *dw, float *db, bool accumulate);
status cpu_conv2d_backward_data(conv2d *plan, int n, const float *weight, const float *y,
                                const float *dy, float *dx);

status cpu_pool_forward(device *dev, const pool_shape *shape, int n, const float *z,
                        const dropout *drop, float *y, uint8_t *argmax);
status cpu_pool_backward(device *dev, const pool_shape *shape, int n, const float *y,
                         const uint8_t *argmax, const float *dy, float p, float *dz);

status cpu_linear_create(device *dev, const linear_shape *shape, int max_n, linear **out);
void cpu_linear_destroy(linear *plan);
status cpu_linear_import(linear *plan, const float *plain, float *weight);
status cpu_linear_export(linear *plan, const float *weight, float *plain);
status cpu_linear_forward(linear *plan, int n, const float *x, const float *weight,
                          const float *bias, bool relu, const dropout *drop, float *y);
status cpu_linear_backward_weights(linear *plan, int n, const float *x, const float *dy, float *dw,
                                   float *db, bool accumulate);
status cpu_linear_backward_data(linear *plan, int n, const float *weight, const float *dy,
                                const float *x, bool relu, float p, float *dx);

#endif
