/* The entries of the cuda device's table (kernels/ops.h), by file. conv2d.h has the convolution's.
 */
#ifndef MNIST_DDP_KERNELS_CUDA_OPS_H
#define MNIST_DDP_KERNELS_CUDA_OPS_H

#include "kernels/cuda/cuda_state.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const device_kind cuda_kind; /* device.c */

/* memory.c; cuda_state.h has alloc and free */
status cuda_upload(device *dev, void *dst, const void *host, size_t size_bytes);
status cuda_download(device *dev, void *host, const void *src, size_t size_bytes);
status cuda_copy(device *dev, void *dst, const void *src, size_t size_bytes);
status cuda_synchronize(device *dev);

/* transfer.c */
status cuda_pin(device *dev, void *host, size_t size_bytes);
void cuda_unpin(device *dev, void *host);
status cuda_alloc_pinned(device *dev, size_t size_bytes, void **out);
void cuda_free_pinned(device *dev, void *host);
status cuda_event_create(device *dev, device_event **out);
status cuda_timer_create(device *dev, device_event **out);
status cuda_event_record(device *dev, device_event *timer);
status cuda_event_elapsed(device *dev, device_event *from, device_event *to, int64_t *ns);
void cuda_event_destroy(device_event *event);
status cuda_copy_out(device *dev, void *pinned, const void *src, size_t size_bytes,
                     device_event *done);
status cuda_event_wait(device *dev, device_event *event);
status cuda_copy_in(device *dev, void *dst, const void *pinned, size_t size_bytes);

/* graph.c */
status cuda_capture_begin(device *dev);
status cuda_capture_end(device *dev, device_graph **out);
status cuda_graph_launch(device *dev, device_graph *graph);
void cuda_graph_destroy(device_graph *graph);

/* step.cu */
status cuda_begin_step(device *dev, const step_plan *plan, step_state *state, float *stop_flag);
status cuda_gather(device *dev, const gather_source *source, const step_state *state,
                   uint32_t offset, int n, float *x, uint8_t *labels_out, uint32_t *samples);

/* half_copy.c */
status cuda_begin_forward(device *dev, const float *parameters, size_t count);

/* pool.cu */
status cuda_pool_forward(device *dev, const pool_shape *shape, int n, const float *z,
                         const dropout *drop, float *y, uint8_t *argmax);
status cuda_pool_backward(device *dev, const pool_shape *shape, int n, const float *y,
                          const uint8_t *argmax, const float *dy, float p, float *dz);

/* linear.c */
status cuda_linear_create(device *dev, const linear_shape *shape, int max_n, linear **out);
void cuda_linear_destroy(linear *plan);
status cuda_linear_import(linear *plan, const float *plain, float *weight);
status cuda_linear_export(linear *plan, const float *weight, float *plain);
status cuda_linear_forward(linear *plan, int n, const float *x, const float *weight,
                           const float *bias, bool relu, const dropout *drop, float *y);
status cuda_linear_backward_weights(linear *plan, int n, const float *x, const float *dy, float *dw,
                                    float *db, bool accumulate);
status cuda_linear_backward_data(linear *plan, int n, const float *weight, const float *dy,
                                 const float *x, bool relu, float p, float *dx);

/* loss.cu */
status cuda_cross_entropy(device *dev, const float *logits, const uint8_t *labels, int n,
                          int classes, const step_state *state, score *totals, float *dlogits);
size_t cuda_loss_scratch_bytes(void); /* zeroed, of cuda_state.loss_scratch */

/* optimizer.cu */
status cuda_sgd_step(device *dev, float *param, const float *grad, float *momentum_buffer,
                     size_t count, step_state *state, const sgd_options *options);
status cuda_adam_step(device *dev, float *param, const float *grad, float *exp_avg,
                      float *exp_avg_sq, size_t count, step_state *state,
                      const adam_options *options);
status cuda_adadelta_step(device *dev, float *param, const float *grad, float *square_avg,
                          float *acc_delta, size_t count, step_state *state,
                          const adadelta_options *options);

#ifdef __cplusplus
}
#endif
#endif
