/* How many files and connections this process may have open at once. */
#ifndef MNIST_DDP_BASE_FILE_LIMIT_H
#define MNIST_DDP_BASE_FILE_LIMIT_H

#include "base/status.h"

#include <stdint.h>

/* Raises the soft limit to the hard one: the usual 1,024 are too few for a job of so many ranks.
 * Returns the soft limit that there was, for the programs that this process starts: those that use
 * select() break beyond 1,023. */
uint64_t file_limit_raise(void);

/* Sets the soft limit. Safe between fork and exec. */
void file_limit_set(uint64_t soft);

/* Why no descriptor was to be had (errno): if it was this limit, with what to do. */
const char *file_limit_reason(int error);

/* STATUS_IO, with what to do, unless n more descriptors can be had now. */
status file_limit_check(int n);

#endif
