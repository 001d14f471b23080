/* The store's keys and values, in memory. */
#ifndef MNIST_DDP_DIST_STORE_TABLE_H
#define MNIST_DDP_DIST_STORE_TABLE_H

#include "base/status.h"
#include "dist/store/store_wire.h"

#include <stdbool.h>

typedef struct store_table store_table;

/* Holds at most `limit_bytes` of keys, values and bookkeeping. */
status store_table_create(size_t limit_bytes, store_table **out);
void store_table_destroy(store_table *table); /* accepts NULL */

/* false if the key is not there. *value is valid until the table changes. */
bool store_table_find(const store_table *table, store_bytes key, store_bytes *value);

/* Copies both; `value` may point into the table. STATUS_NO_MEMORY beyond the limit: nothing changes
 * then. */
status store_table_set(store_table *table, store_bytes key, store_bytes value);

/* Whether the key was there. */
bool store_table_delete(store_table *table, store_bytes key);

/* Deletes every key for which `doomed` says so. */
void store_table_delete_if(store_table *table, bool (*doomed)(const void *ctx, store_bytes key),
                           const void *ctx);

size_t store_table_count(const store_table *table);

#endif
