/* How the host waits for a GPU: by polling, so that a wait can be interrupted. */
#ifndef MNIST_DDP_KERNELS_CUDA_WAIT_H
#define MNIST_DDP_KERNELS_CUDA_WAIT_H

#include "kernels/cuda/cuda_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Waits until all work enqueued on `stream` is done, or `event` is reached. Fails with the work's
 * own error, or with that of dev->interrupted; then the GPU is given up: no later call waits for
 * it. `what` names the waiting call. An error during graph capture. */
status cuda_wait_stream(device *dev, cudaStream_t stream, const char *what);
status cuda_wait_event(device *dev, cudaEvent_t event, const char *what);

/* Waits for all enqueued work, before something is freed that the GPU may use. False: the work
 * hangs, and freeing would hang too. Does not change the thread's error message. */
bool cuda_drain(device *dev);

/* accelerator_ops.recover */
status cuda_recover(device *dev, int64_t timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
