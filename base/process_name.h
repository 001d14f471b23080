/* Other processes, as a message names them. */
#ifndef MNIST_DDP_BASE_PROCESS_NAME_H
#define MNIST_DDP_BASE_PROCESS_NAME_H

#include <stddef.h>

/* "pid 4711 (python train.py)": its command line, cut; "?" if it cannot be read. */
void process_name(int pid, char *out, size_t size_bytes);

#endif
