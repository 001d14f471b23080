/* The embedded default data set: generated digits (data/digits/digits.h), kept as IDX files under
 * MNIST's names. They are not MNIST. */
#ifndef MNIST_DDP_DATA_EMBEDDED_H
#define MNIST_DDP_DATA_EMBEDDED_H

#include "base/status.h"
#include "data/idx_file.h"
#include "data/mnist_files.h"

/* Finds the four files in the cache, or makes them there (once per host; takes seconds), and sets
 * `folder` (FILE_PATH_BYTES). If another process is making them, waits at most CACHE_LOCK_MS.
 * STATUS_IO or STATUS_TIMEOUT if the cache cannot be used. */
status embedded_find_or_make(char *folder);

/* Makes one split in this process's memory, for a host without a cache. */
status embedded_open_in_memory(dataset_split split, idx_file *images, idx_file *labels);

#endif
