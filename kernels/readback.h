/* Asynchronous copy of a few bytes from a device to the host. The device goes on computing
 * meanwhile. On a host device the copy is done at once. */
#ifndef MNIST_DDP_KERNELS_READBACK_H
#define MNIST_DDP_KERNELS_READBACK_H

#include "kernels/device.h"

#include <stdbool.h>

struct device_event;

typedef struct readback {
    device *dev; /* NULL: closed */
    size_t size_bytes;
    void *seen;     /* host memory (pinned): the bytes of the last readback_wait */
    void *snapshot; /* device memory; NULL on a host device, as is `copied` */
    struct device_event *copied;
    bool under_way;
} readback;

/* Room for `size_bytes`. readback_close accepts a zeroed one. */
status readback_open(device *dev, size_t size_bytes, readback *out);
void readback_close(readback *r);

/* Enqueues a copy of `src`, device memory, as it is after the work enqueued so far. Work enqueued
 * later may overwrite `src`. Only one copy at a time. Not during graph capture. */
status readback_start(readback *r, const void *src);

/* Waits for that copy, not for later work. Then r->seen holds it. */
status readback_wait(readback *r);

#endif
