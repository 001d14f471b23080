#include "dist/store/store_table.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { FIRST_BUCKETS = 64 };

/* Chains of entries in a power of two of buckets, doubled when there are as many entries. */
typedef struct entry {
    struct entry *next;
    uint64_t hash;
    size_t key_size, value_size;
    uint8_t *value; /* own memory, NULL if empty */
    uint8_t key[];
} entry;

struct store_table {
    entry **buckets;
    size_t n_buckets, count;
    size_t used_bytes, limit_bytes;
    uint64_t seed; /* random, so that a peer cannot choose keys that all meet in one bucket */
};

/* FNV-1a, from a basis of our own. */
static uint64_t hash_of(const store_table *table, store_bytes key)
{
    uint64_t hash = 0xcbf29ce484222325u ^ table->seed;
    for (size_t i = 0; i < key.size; i++)
        hash = (hash ^ key.data[i]) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

status store_table_create(size_t limit_bytes, store_table **out)
{
    store_table *table = calloc(1, sizeof *table);
    entry **buckets = calloc(FIRST_BUCKETS, sizeof *buckets);
    if (table == NULL || buckets == NULL) {
        free(table);
        free(buckets);
        return FAIL(STATUS_NO_MEMORY, "a store of %d buckets", FIRST_BUCKETS);
    }
    *table = (store_table){.buckets = buckets, .n_buckets = FIRST_BUCKETS};
    table->limit_bytes = limit_bytes;
    if (getrandom(&table->seed, sizeof table->seed, GRND_NONBLOCK) < 0)
        table->seed = (uint64_t)(uintptr_t)table;
    *out = table;
    return STATUS_OK;
}

static void entry_free(entry *e)
{
    free(e->value);
    free(e);
}

void store_table_destroy(store_table *table)
{
    if (table == NULL)
        return;
    for (size_t b = 0; b < table->n_buckets; b++) {
        for (entry *e = table->buckets[b], *next; e != NULL; e = next) {
            next = e->next;
            entry_free(e);
        }
    }
    free(table->buckets);
    free(table);
}

/* The link that points to the key's entry, or the NULL at the end of its chain. */
static entry **link_of(const store_table *table, store_bytes key, uint64_t hash)
{
    entry **link = &table->buckets[hash & (table->n_buckets - 1)];
    while (*link != NULL && ((*link)->hash != hash || (*link)->key_size != key.size ||
                             memcmp((*link)->key, key.data, key.size) != 0))
        link = &(*link)->next;
    return link;
}

bool store_table_find(const store_table *table, store_bytes key, store_bytes *value)
{
    const entry *e = *link_of(table, key, hash_of(table, key));
    if (e == NULL)
        return false;
    *value = (store_bytes){.data = e->value, .size = e->value_size};
    return true;
}

/* Where memory is short the chains grow longer instead. */
static void grow(store_table *table)
{
    size_t n = table->n_buckets * 2;
    entry **buckets = calloc(n, sizeof(entry *));
    if (buckets == NULL)
        return;
    for (size_t b = 0; b < table->n_buckets; b++) {
        for (entry *e = table->buckets[b], *next; e != NULL; e = next) {
            next = e->next;
            e->next = buckets[e->hash & (n - 1)];
            buckets[e->hash & (n - 1)] = e;
        }
    }
    free(table->buckets);
    table->buckets = buckets;
    table->n_buckets = n;
}

static entry *entry_create(store_bytes key, uint64_t hash)
{
    entry *e = malloc(sizeof *e + key.size);
    if (e == NULL)
        return NULL;
    *e = (entry){.hash = hash, .key_size = key.size};
    memcpy(e->key, key.data, key.size);
    return e;
}

status store_table_set(store_table *table, store_bytes key, store_bytes value)
{
    uint64_t hash = hash_of(table, key);
    entry *e = *link_of(table, key, hash);
    size_t freed = e != NULL ? e->value_size : 0;
    size_t added = value.size + (e != NULL ? 0 : sizeof *e + key.size);
    if (added > table->limit_bytes - (table->used_bytes - freed))
        return FAIL(STATUS_NO_MEMORY, "the store is full: it holds at most %zu bytes",
                    table->limit_bytes);
    uint8_t *copy = NULL;
    if (value.size > 0) {
        copy = malloc(value.size);
        if (copy == NULL)
            return FAIL(STATUS_NO_MEMORY, "a value of %zu bytes", value.size);
        memcpy(copy, value.data, value.size);
    }
    if (e == NULL) {
        if (table->count >= table->n_buckets)
            grow(table);
        e = entry_create(key, hash);
        if (e == NULL) {
            free(copy);
            return FAIL(STATUS_NO_MEMORY, "a key of %zu bytes", key.size);
        }
        entry **bucket = &table->buckets[hash & (table->n_buckets - 1)];
        e->next = *bucket;
        *bucket = e;
        table->count++;
    }
    free(e->value);
    e->value = copy;
    e->value_size = value.size;
    table->used_bytes = table->used_bytes - freed + added;
    return STATUS_OK;
}

static void unlink_entry(store_table *table, entry **link)
{
    entry *e = *link;
    *link = e->next;
    table->used_bytes -= sizeof *e + e->key_size + e->value_size;
    table->count--;
    entry_free(e);
}

bool store_table_delete(store_table *table, store_bytes key)
{
    entry **link = link_of(table, key, hash_of(table, key));
    if (*link == NULL)
        return false;
    unlink_entry(table, link);
    return true;
}

void store_table_delete_if(store_table *table, bool (*doomed)(const void *ctx, store_bytes key),
                           const void *ctx)
{
    for (size_t b = 0; b < table->n_buckets; b++) {
        for (entry **link = &table->buckets[b]; *link != NULL;) {
            if (doomed(ctx, (store_bytes){.data = (*link)->key, .size = (*link)->key_size}))
                unlink_entry(table, link);
            else
                link = &(*link)->next;
        }
    }
}

size_t store_table_count(const store_table *table)
{
    return table->count;
}
