/* Memory: large blocks for arithmetic, pieces that come back, bytes that pass through. */
#ifndef MNIST_DDP_BASE_MEMORY_H
#define MNIST_DDP_BASE_MEMORY_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Host memory for arithmetic: 64-byte aligned, zeroed. */

/* Sets *out to `size_bytes` (0 allowed) of zeroed memory, aligned to 64 bytes; free with free().
 * STATUS_NO_MEMORY with the size. All of it is resident at once; from 2 MiB on as huge pages, if
 * the system has them for whoever asks. */
status memory_alloc(size_t size_bytes, void **out);

/* Of a page of memory. */
size_t memory_page_bytes(void);

/* As memcpy, but past the caches: for data that another core reads next, into memory that it has
 * read before. Taking such cache lines back from it, one by one, would cost most of the time. */
void memory_stream(void *restrict out, const void *restrict in, size_t size_bytes);

/* a * b without overflow: false if the product does not fit. */
bool memory_product(size_t a, size_t b, size_t *out);

/* Pieces of memory of one size that are taken and given back again and again: only the first ones
 * are allocated. One thread at a time. */

typedef struct spares {
    struct spare *first; /* all zero: there are none yet */
} spares;

/* A piece, zeroed, of size_bytes: at least a pointer's, and always the same. NULL: no memory. */
void *spares_take(spares *s, size_t size_bytes);

/* Takes a piece back. */
void spares_give(spares *s, void *piece);

/* Frees those that have been given back. */
void spares_free(spares *s);

/* Bytes that come in at the end and go out at the front, as of a connection. */

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
