/* Which of the cpu device's kernels can be tested here. */
#ifndef MNIST_DDP_TESTS_KERNELS_ISA_MISSING_H
#define MNIST_DDP_TESTS_KERNELS_ISA_MISSING_H

#include "kernels/device_kind.h"

#include <stddef.h>

/* Why there is nothing to test: NULL if the cpu device has these instructions here. */
static inline const char *isa_missing(const char *isa)
{
    device *dev = NULL;
    device_options wanted = {.name = "cpu", .threads = 1, .isa = isa};
    if (device_create(&wanted, &dev) != STATUS_OK)
        return status_text();
    device_destroy(dev);
    return NULL;
}

#endif
