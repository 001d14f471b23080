/* Memory that goes with its owner: a list of what was handed out. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_ALLOCATIONS_H
#define MNIST_DDP_DIST_PROCESS_GROUP_ALLOCATIONS_H

#include "base/status.h"

#include <stddef.h>

/* All zero is an empty list. The owner locks it. */
typedef struct allocations {
    struct allocation *first;
} allocations;

/* As memory_alloc; freed by allocations_free. */
status allocations_add(allocations *list, size_t size_bytes, void **out);
void allocations_free(allocations *list);

#endif
