/* The store's keys and values, in memory. */
#ifndef MNIST_DDP_DIST_STORE_STORE_TABLE_H
#define MNIST_DDP_DIST_STORE_STORE_TABLE_H

#include "base/status.h"
#include "dist/store/store_wire.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct store_table store_table;

/* Holds at most `limit_bytes` of keys, values and bookkeeping. */
status store_table_create(size_t limit_bytes, store_table **out);
void store_table_destroy(store_table *table); /* accepts NULL */

/* false if the key is not there. *value is valid until the table changes. */
bool store_table_find(const store_table *table, store_bytes key, store_bytes *value);

/* Copies both; `value` may point into the table. STATUS_NO_MEMORY beyond the limit: nothing changes
 * then. */
status store_table_set(store_table *table, store_bytes key, store_bytes value);

/* Appends `more`, which lies outside the table, to the value; a key that is not there has none.
 * Costs what it appends, taken over all calls. STATUS_INVALID if the value would become longer than
 * `limit_bytes`, STATUS_NO_MEMORY beyond the table's limit: nothing changes then. */
status store_table_append(store_table *table, store_bytes key, store_bytes more,
                          size_t limit_bytes);

/* What the table finds the key by; random from table to table. */
uint64_t store_table_hash(const store_table *table, store_bytes key);

/* Whether the key was there. */
bool store_table_delete(store_table *table, store_bytes key);

/* Deletes every key for which `doomed` says so. */
void store_table_delete_if(store_table *table, bool (*doomed)(const void *ctx, store_bytes key),
                           const void *ctx);

/* Calls `visit` for every key, until it fails: with what it returns then. */
status store_table_each(const store_table *table, status (*visit)(void *ctx, store_bytes key),
                        void *ctx);

size_t store_table_count(const store_table *table);

#endif
