/* A few bytes of a device's memory on their way to the host, while the device goes on.
 *
 * On host memory they have arrived at once.
 */
#ifndef MNIST_DDP_KERNELS_READBACK_H
#define MNIST_DDP_KERNELS_READBACK_H

#include "kernels/device.h"

#include <stdbool.h>

struct device_event;

typedef struct readback {
    device *dev; /* NULL: closed */
    size_t size_bytes;
    void *seen;     /* host memory: what the last readback_wait brought */
    void *snapshot; /* device memory; NULL on a host device, as is `copied` */
    struct device_event *copied;
    bool under_way;
} readback;

/* Room for `size_bytes`. readback_close accepts a zeroed one. */
status readback_open(device *dev, size_t size_bytes, readback *out);
void readback_close(readback *r);

/* Enqueues a copy of `src`, device memory, as it is behind the work so far; what is enqueued later
 * may write there. None may be under way. Not while work is recorded. */
status readback_start(readback *r, const void *src);

/* Waits for that copy and for no later work; then r->seen has it. */
status readback_wait(readback *r);

#endif
