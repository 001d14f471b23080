/* How the host waits for a GPU: it asks again and again, so that it can always give up. */
#ifndef MNIST_DDP_KERNELS_CUDA_WAIT_H
#define MNIST_DDP_KERNELS_CUDA_WAIT_H

#include "kernels/cuda/cuda_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Until all work enqueued on `stream` is done, or `event` is reached. Fails with the work's own
 * error, or as dev->interrupted says; then the GPU is given up: nothing waits for it any more.
 * `what` names the waiting call. An error while a recording is made. */
status cuda_wait_stream(device *dev, cudaStream_t stream, const char *what);
status cuda_wait_event(device *dev, cudaEvent_t event, const char *what);

/* Before something is released that the GPU may use: waits for all enqueued work. False: it hangs,
 * so that releasing would hang too. Leaves the thread's message as it is, unless dev->interrupted
 * has one. */
bool cuda_drain(device *dev);

#ifdef __cplusplus
}
#endif
#endif
