/* A device: where tensors live and who does the arithmetic.
 *
 * Every operation of every device stands in one table, kernels/ops.h. Tensors are flat float32 in
 * the device's own memory. The layout of activations between the ends of a network, and the order
 * of a weight inside its slice, are the device's private choice (ops.h says where plain order comes
 * back).
 */
#ifndef MNIST_DDP_KERNELS_DEVICE_H
#define MNIST_DDP_KERNELS_DEVICE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct device_stream device_stream; /* an accelerator's queue; NULL: host, work is done when
                                               the call returns */
typedef struct device_ops device_ops;

typedef struct device {
    const device_ops *ops;
    void *state; /* the implementation's own */
    int threads; /* host threads that compute */
} device;

/* The gradient slice [offset, offset + count) of the arena is final once the work enqueued on
 * `stream` so far is done. Called while a backward pass is enqueued. */
typedef status (*grad_ready_fn)(void *ctx, size_t offset, size_t count, device_stream *stream);

/* Opens a device by the name that --device takes: "cpu" (oneDNN, or the reference kernels where it
 * was not built in), "reference" (plain loops), "auto". `threads` >= 1.
 * STATUS_INVALID for a name that is not there, with the ones that are. */
status device_create(const char *name, int threads, device **out);

/* What the cpu device computes with: "oneDNN 2.6.3" or "reference kernels". */
const char *device_libraries(void);

/* Accepts NULL. Everything made on the device must be gone. */
void device_destroy(device *dev);

#endif
