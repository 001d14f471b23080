/* The machine that this process is on. */
#ifndef MNIST_DDP_BASE_HOST_H
#define MNIST_DDP_BASE_HOST_H

#include <stdint.h>

/* The same number on all processes of a running kernel, and on no other's; 0: not known. */
uint64_t host_number(void);

#endif
