/* Host memory for arithmetic: 64-byte aligned, zeroed. */
#ifndef MNIST_DDP_BASE_MEMORY_H
#define MNIST_DDP_BASE_MEMORY_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

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

#endif
