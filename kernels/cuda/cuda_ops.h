/* The cuda device's rows of the tables in kernels/ops.h, by file. */
#ifndef MNIST_DDP_KERNELS_CUDA_CUDA_OPS_H
#define MNIST_DDP_KERNELS_CUDA_CUDA_OPS_H

#include "kernels/cuda/cuda_state.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const device_kind cuda_kind; /* device.c */

/* memory.c; cuda_state.h has alloc and free */
status cuda_alloc_pinned(device *dev, size_t size_bytes, void **out);
void cuda_free_pinned(device *dev, void *host);
void cuda_keep_freed(device *dev);
upload_op cuda_upload;
download_op cuda_download;
copy_op cuda_copy;
synchronize_op cuda_synchronize;

/* transfer.c */
status cuda_pin(device *dev, void *host, size_t size_bytes);
void cuda_unpin(device *dev, void *host);
status cuda_event_create(device *dev, device_event **out);
status cuda_timer_create(device *dev, device_event **out);
status cuda_event_record(device *dev, device_event *timer);
status cuda_event_elapsed(device *dev, device_event *from, device_event *to, int64_t *ns);
void cuda_event_destroy(device_event *event);
status cuda_copy_out(device *dev, void *pinned, const void *src, size_t size_bytes,
                     device_event *done);
status cuda_event_wait(device *dev, device_event *event);
status cuda_copy_in(device *dev, void *dst, const void *pinned, size_t size_bytes);

/* cast.cu */
status cuda_narrow(device *dev, precision type, const float *from, size_t count, float factor,
                   void *to);
status cuda_widen(device *dev, precision type, const void *from, size_t count, float *to);

/* graph.c */
status cuda_capture_begin(device *dev);
status cuda_capture_end(device *dev, device_graph **out);
status cuda_graph_launch(device *dev, device_graph *graph);
void cuda_graph_destroy(device_graph *graph);

/* step.cu */
begin_step_op cuda_begin_step;
status cuda_commit_offer(device *dev, const step_vote *vote, step_state *state);
status cuda_commit_take(device *dev, const step_vote *vote, step_state *state);
gather_op cuda_gather;

/* half_copy.c */
begin_forward_op cuda_begin_forward;

/* pool.cu */
pool_forward_op cuda_pool_forward;
pool_backward_op cuda_pool_backward;

/* conv2d.c */
conv2d_create_op cuda_conv2d_create;
conv2d_destroy_op cuda_conv2d_destroy;
conv2d_import_op cuda_conv2d_import;
conv2d_export_op cuda_conv2d_export;
conv2d_forward_op cuda_conv2d_forward;
conv2d_backward_weights_op cuda_conv2d_backward_weights;
conv2d_backward_data_op cuda_conv2d_backward_data;

/* linear.c */
linear_create_op cuda_linear_create;
linear_destroy_op cuda_linear_destroy;
linear_import_op cuda_linear_import;
linear_export_op cuda_linear_export;
linear_forward_op cuda_linear_forward;
linear_finish_op cuda_linear_finish;
linear_backward_weights_op cuda_linear_backward_weights;
linear_backward_data_op cuda_linear_backward_data;

/* loss.cu */
cross_entropy_op cuda_cross_entropy;
size_t cuda_loss_scratch_bytes(void); /* zeroed, of cuda_state.loss_scratch */

/* clip.cu */
clip_gradients_op cuda_clip_gradients;

/* optimizer.cu */
sgd_step_op cuda_sgd_step;
adam_step_op cuda_adam_step;
adadelta_step_op cuda_adadelta_step;

#ifdef __cplusplus
}
#endif
#endif
