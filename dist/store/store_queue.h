/* Queues of the store, by key. They lie in a table of their own, as pieces: where a queue begins
 * and ends, and each of its values. A queue that is empty is not there. */
#ifndef MNIST_DDP_DIST_STORE_STORE_QUEUE_H
#define MNIST_DDP_DIST_STORE_STORE_QUEUE_H

#include "dist/store/store_table.h"

/* STATUS_NO_MEMORY beyond the table's limit: nothing is pushed then. */
status store_queue_push(store_table *queues, store_bytes key, store_bytes value);

/* How many values it holds; if any, *value is the one that is there longest, until the table
 * changes. */
uint64_t store_queue_look(const store_table *queues, store_bytes key, store_bytes *value);

/* Takes that one out. */
status store_queue_drop(store_table *queues, store_bytes key);

#endif
