/* Bytes that come in at the end and go out at the front, as of a connection. */
#ifndef MNIST_DDP_BASE_BYTE_BUFFER_H
#define MNIST_DDP_BASE_BYTE_BUFFER_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* All zero is an empty buffer. Read data[0 .. size), change only through the functions. */
typedef struct byte_buffer {
    uint8_t *memory; /* capacity bytes; data points into it */
    uint8_t *data;
    size_t size, capacity;
} byte_buffer;

/* Grows by what is needed, and by half of the size at most: memory follows what has come in.
 * STATUS_NO_MEMORY. */
status byte_buffer_append(byte_buffer *buffer, const void *data, size_t size_bytes);

/* Drops bytes at the front. An empty buffer keeps a kilobyte at most. */
void byte_buffer_consume(byte_buffer *buffer, size_t size_bytes);

void byte_buffer_free(byte_buffer *buffer);

#endif
