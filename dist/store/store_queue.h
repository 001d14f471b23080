/* Queues of the store, by key. They lie in a table of their own, as pieces: where a queue begins
 * and ends, and each of its values. A queue that is empty is not there. */
#ifndef MNIST_DDP_DIST_STORE_STORE_QUEUE_H
#define MNIST_DDP_DIST_STORE_STORE_QUEUE_H

#include "dist/store/store_table.h"

/* STATUS_NO_MEMORY beyond the table's limit: nothing is pushed then. */
status store_queue_push(store_table *queues, store_bytes key, store_bytes value);

/* How many values it holds. */
uint64_t store_queue_length(const store_table *queues, store_bytes key);

/* The value that is there longest, of a queue that has one; valid until the table changes. */
void store_queue_first(const store_table *queues, store_bytes key, store_bytes *value);

/* Takes it out. */
status store_queue_drop_first(store_table *queues, store_bytes key);

#endif
