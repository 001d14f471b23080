/* Numbers of bytes as people type them. */
#ifndef MNIST_DDP_APP_BENCH_BYTE_SIZE_H
#define MNIST_DDP_APP_BENCH_BYTE_SIZE_H

#include "base/status.h"

#include <stddef.h>

/* "8", "64K", "16M", "1G": powers of 1024, with "B", "KB" or "KiB" alike, in any case. `where`
 * ("--minbytes") begins the message of STATUS_INVALID. At most 2^40. */
status byte_size_parse(const char *where, const char *text, size_t *out);

#endif
