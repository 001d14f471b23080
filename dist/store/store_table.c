#include "dist/store/store_table.h"

#include "base/digest.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    FIRST_BUCKETS = 64,
    OVERHEAD_BYTES = 64, /* of an entry: malloc's, for two blocks, and the bucket's */
};

/* Chains of entries in a power of two of buckets, doubled when there are as many entries. */
typedef struct entry {
    struct entry *next;
    uint64_t hash;
    size_t key_size, value_size, capacity;
    uint8_t *value; /* `capacity` bytes of own memory, NULL if there are none */
    uint8_t key[];
} entry;

struct store_table {
    entry **buckets;
    size_t n_buckets, count;
    size_t used_bytes, limit_bytes;
    uint64_t seed; /* random, so that a peer cannot choose keys that all meet in one bucket */
};

/* From a basis of our own. */
uint64_t store_table_hash(const store_table *table, store_bytes key)
{
    uint64_t hash = fnv1a(FNV1A_START ^ table->seed, key.data, key.size);
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
    const entry *e = *link_of(table, key, store_table_hash(table, key));
    if (e == NULL)
        return false;
    *value = (store_bytes){.data = e->value, .size = e->value_size};
    return true;
}

/* If memory is short the chains grow longer instead. */
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

/* Beside its value. */
static size_t entry_bytes(size_t key_bytes)
{
    return sizeof(entry) + key_bytes + OVERHEAD_BYTES;
}

/* Whether the table may grow by `added` bytes once `freed` are gone. */
static status check_room(const store_table *table, size_t added, size_t freed)
{
    if (added <= table->limit_bytes - (table->used_bytes - freed))
        return STATUS_OK;
    return FAIL(STATUS_NO_MEMORY, "the store is full: it holds at most %zu bytes",
                table->limit_bytes);
}

/* Takes `value`, memory of its own, on success. */
static status add_entry(store_table *table, store_bytes key, uint64_t hash, uint8_t *value,
                        size_t size_bytes)
{
    if (table->count >= table->n_buckets)
        grow(table);
    entry *e = entry_create(key, hash);
    if (e == NULL)
        return FAIL(STATUS_NO_MEMORY, "a key of %zu bytes", key.size);
    e->value = value;
    e->value_size = e->capacity = size_bytes;
    entry **bucket = &table->buckets[hash & (table->n_buckets - 1)];
    e->next = *bucket;
    *bucket = e;
    table->count++;
    table->used_bytes += entry_bytes(key.size) + size_bytes;
    return STATUS_OK;
}

status store_table_set(store_table *table, store_bytes key, store_bytes value)
{
    uint64_t hash = store_table_hash(table, key);
    entry *e = *link_of(table, key, hash);
    size_t freed = e != NULL ? e->capacity : 0;
    TRY(check_room(table, value.size + (e != NULL ? 0 : entry_bytes(key.size)), freed));
    uint8_t *copy = NULL;
    if (value.size > 0) {
        copy = malloc(value.size);
        if (copy == NULL)
            return FAIL(STATUS_NO_MEMORY, "a value of %zu bytes", value.size);
        memcpy(copy, value.data, value.size);
    }
    if (e == NULL) {
        status st = add_entry(table, key, hash, copy, value.size);
        if (st != STATUS_OK)
            free(copy);
        return st;
    }
    free(e->value);
    e->value = copy;
    e->value_size = e->capacity = value.size;
    table->used_bytes = table->used_bytes - freed + value.size;
    return STATUS_OK;
}

/* Grows by half at least, so that what was there is moved only now and then. */
static status make_room(store_table *table, entry *e, size_t need)
{
    size_t capacity = e->capacity + e->capacity / 2;
    if (capacity < need)
        capacity = need;
    if (check_room(table, capacity, e->capacity) != STATUS_OK) {
        capacity = need;
        TRY(check_room(table, capacity, e->capacity));
    }
    uint8_t *value = realloc(e->value, capacity);
    if (value == NULL)
        return FAIL(STATUS_NO_MEMORY, "a value of %zu bytes", capacity);
    table->used_bytes += capacity - e->capacity;
    e->value = value;
    e->capacity = capacity;
    return STATUS_OK;
}

status store_table_append(store_table *table, store_bytes key, store_bytes more, size_t limit_bytes)
{
    entry *e = *link_of(table, key, store_table_hash(table, key));
    size_t held = e != NULL ? e->value_size : 0;
    if (more.size > limit_bytes || held > limit_bytes - more.size)
        return FAIL(STATUS_INVALID, "a value of %zu and %zu bytes more: at most %zu are allowed",
                    held, more.size, limit_bytes);
    if (e == NULL)
        return store_table_set(table, key, more);
    if (more.size == 0)
        return STATUS_OK;
    if (held + more.size > e->capacity)
        TRY(make_room(table, e, held + more.size));
    memcpy(e->value + held, more.data, more.size);
    e->value_size += more.size;
    return STATUS_OK;
}

static void unlink_entry(store_table *table, entry **link)
{
    entry *e = *link;
    *link = e->next;
    table->used_bytes -= entry_bytes(e->key_size) + e->capacity;
    table->count--;
    entry_free(e);
}

bool store_table_delete(store_table *table, store_bytes key)
{
    entry **link = link_of(table, key, store_table_hash(table, key));
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

status store_table_each(const store_table *table, status (*visit)(void *ctx, store_bytes key),
                        void *ctx)
{
    for (size_t b = 0; b < table->n_buckets; b++)
        for (const entry *e = table->buckets[b]; e != NULL; e = e->next)
            TRY(visit(ctx, (store_bytes){.data = e->key, .size = e->key_size}));
    return STATUS_OK;
}

size_t store_table_count(const store_table *table)
{
    return table->count;
}
