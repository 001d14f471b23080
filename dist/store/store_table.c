#include "dist/store/store_table.h"

#include "base/clock.h"
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

/* The value is `head` and `value`, one after the other. */
static status set_parts(store_table *table, store_bytes key, store_bytes head, store_bytes value)
{
    uint64_t hash = store_table_hash(table, key);
    entry *e = *link_of(table, key, hash);
    size_t freed = e != NULL ? e->capacity : 0, size_bytes = head.size + value.size;
    TRY(check_room(table, size_bytes + (e != NULL ? 0 : entry_bytes(key.size)), freed));
    uint8_t *copy = NULL;
    if (size_bytes > 0 && (copy = malloc(size_bytes)) == NULL)
        return FAIL(STATUS_NO_MEMORY, "a value of %zu bytes", size_bytes);
    if (head.size > 0)
        memcpy(copy, head.data, head.size);
    if (value.size > 0)
        memcpy(copy + head.size, value.data, value.size);
    if (e == NULL) {
        status st = add_entry(table, key, hash, copy, size_bytes);
        if (st != STATUS_OK)
            free(copy);
        return st;
    }
    free(e->value);
    e->value = copy;
    e->value_size = e->capacity = size_bytes;
    table->used_bytes = table->used_bytes - freed + size_bytes;
    return STATUS_OK;
}

status store_table_set(store_table *table, store_bytes key, store_bytes value)
{
    return set_parts(table, key, (store_bytes){0}, value);
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

bool store_table_delete(store_table *table, store_bytes key)
{
    entry **link = link_of(table, key, store_table_hash(table, key)), *e = *link;
    if (e == NULL)
        return false;
    *link = e->next;
    table->used_bytes -= entry_bytes(e->key_size) + e->capacity;
    table->count--;
    entry_free(e);
    return true;
}

bool store_table_next(const store_table *table, store_iterator *at)
{
    while (at->next == NULL && at->bucket < table->n_buckets)
        at->next = table->buckets[at->bucket++];
    const entry *e = at->next;
    if (e == NULL)
        return false;
    at->next = e->next;
    at->key = (store_bytes){.data = e->key, .size = e->key_size};
    at->value = (store_bytes){.data = e->value, .size = e->value_size};
    return true;
}

size_t store_table_count(const store_table *table)
{
    return table->count;
}

/* A piece's name in the table: the queue's key and a number, of the value or ENDS. */
typedef struct piece {
    uint8_t name[STORE_KEY_BYTES + 8];
} piece;

static const uint64_t ENDS = UINT64_MAX;

/* The number of the first value, and the one after the last. */
typedef struct queue_ends {
    uint64_t first, end;
} queue_ends;

static store_bytes name_piece(piece *out, store_bytes key, uint64_t number)
{
    memcpy(out->name, key.data, key.size);
    store_wire_put_u64(out->name + key.size, number);
    return (store_bytes){.data = out->name, .size = key.size + 8};
}

static queue_ends read_ends(const store_table *queues, store_bytes key)
{
    piece ends;
    store_bytes held;
    if (!store_table_find(queues, name_piece(&ends, key, ENDS), &held))
        return (queue_ends){0};
    return (queue_ends){store_wire_u64(held.data), store_wire_u64(held.data + 8)};
}

static status write_ends(store_table *queues, store_bytes key, queue_ends now)
{
    piece ends;
    uint8_t bytes[16];
    store_bytes name = name_piece(&ends, key, ENDS);
    store_wire_put_u64(bytes, now.first);
    store_wire_put_u64(bytes + 8, now.end);
    if (now.first < now.end)
        return store_table_set(queues, name, (store_bytes){bytes, sizeof bytes});
    (void)store_table_delete(queues, name);
    return STATUS_OK;
}

status store_queue_push(store_table *queues, store_bytes key, store_bytes value)
{
    piece last;
    queue_ends ends = read_ends(queues, key);
    store_bytes name = name_piece(&last, key, ends.end++);
    TRY(store_table_set(queues, name, value));
    status st = write_ends(queues, key, ends);
    if (st != STATUS_OK)
        (void)store_table_delete(queues, name);
    return st;
}

uint64_t store_queue_look(const store_table *queues, store_bytes key, store_bytes *value)
{
    piece first;
    queue_ends ends = read_ends(queues, key);
    if (ends.first < ends.end)
        (void)store_table_find(queues, name_piece(&first, key, ends.first), value);
    return ends.end - ends.first;
}

status store_queue_drop(store_table *queues, store_bytes key)
{
    piece first;
    queue_ends ends = read_ends(queues, key);
    (void)store_table_delete(queues, name_piece(&first, key, ends.first++));
    return write_ends(queues, key, ends);
}

/* Watched keys lie in a table of their own, each value after its head. */

typedef struct watched_head {
    int64_t created, set;   /* the revisions that made the key and that set it last */
    int64_t ttl_ms, end_ns; /* of its lease; 0: it has none */
    const void *owner;
    bool goes_with_owner;
} watched_head;

struct store_watched {
    store_table *keys;
    int64_t revision;
    int64_t gone;   /* the revision at which a key went last */
    int64_t due_ns; /* no lease ends before */
    store_watched_fn on_change;
    void *ctx;
};

/* Far apart from server to server, and a positive i64 for longer than any of them serves. */
static int64_t first_revision(void)
{
    uint32_t random = 0;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random)
        random = (uint32_t)clock_now_ns();
    return ((int64_t)(random >> 2) + 1) << 32;
}

status store_watched_create(size_t limit_bytes, store_watched_fn on_change, void *ctx,
                            store_watched **out)
{
    store_watched *watched = calloc(1, sizeof *watched);
    if (watched == NULL)
        return FAIL(STATUS_NO_MEMORY, "a table of watched keys");
    *watched = (store_watched){
        .revision = first_revision(), .due_ns = INT64_MAX, .on_change = on_change, .ctx = ctx};
    watched->gone = watched->revision;
    status st = store_table_create(limit_bytes, &watched->keys);
    if (st == STATUS_OK)
        *out = watched;
    else
        free(watched);
    return st;
}

void store_watched_destroy(store_watched *watched)
{
    if (watched == NULL)
        return;
    store_table_destroy(watched->keys);
    free(watched);
}

int64_t store_watched_revision(const store_watched *watched)
{
    return watched->revision;
}

/* NULL: the key is not there. */
static watched_head *find_head(const store_watched *watched, store_bytes key)
{
    const entry *e = *link_of(watched->keys, key, store_table_hash(watched->keys, key));
    return e != NULL ? (watched_head *)(void *)e->value : NULL;
}

static void begin_lease(store_watched *watched, watched_head *head, const void *owner)
{
    head->owner = owner;
    head->end_ns = head->ttl_ms > 0 ? clock_deadline_ns(head->ttl_ms) : 0;
    if (head->end_ns != 0 && head->end_ns < watched->due_ns)
        watched->due_ns = head->end_ns;
}

status store_watched_set(store_watched *watched, const store_watched_put *put, int64_t *revision)
{
    const watched_head *held = find_head(watched, put->key);
    watched_head head = {.created = watched->revision + 1, .set = watched->revision + 1};
    *revision = 0;
    if (put->expected >= 0 && put->expected != (held != NULL ? held->set : 0))
        return STATUS_OK;
    if (held != NULL)
        head.created = held->created;
    head.goes_with_owner = put->goes_with_owner;
    head.ttl_ms = put->ttl_ms > 0 && put->ttl_ms < STORE_TTL_MS ? STORE_TTL_MS : put->ttl_ms;
    TRY(set_parts(watched->keys, put->key, (store_bytes){(const uint8_t *)&head, sizeof head},
                  put->value));
    begin_lease(watched, find_head(watched, put->key), put->owner);
    *revision = ++watched->revision;
    watched->on_change(watched->ctx, put->key);
    return STATUS_OK;
}

bool store_watched_renew(store_watched *watched, store_bytes key, const void *owner)
{
    watched_head *head = find_head(watched, key);
    if (head != NULL)
        begin_lease(watched, head, owner);
    return head != NULL;
}

static void drop(store_watched *watched, store_bytes key)
{
    watched->gone = ++watched->revision;
    watched->on_change(watched->ctx, key);
    (void)store_table_delete(watched->keys, key);
}

bool store_watched_remove(store_watched *watched, store_bytes key)
{
    bool there = find_head(watched, key) != NULL;
    if (there)
        drop(watched, key);
    return there;
}

static bool is_under(store_bytes prefix, store_bytes key)
{
    bool is_folder = prefix.size > 0 && prefix.data[prefix.size - 1] == '/';
    return (is_folder ? key.size >= prefix.size : key.size == prefix.size) &&
           (prefix.size == 0 || memcmp(key.data, prefix.data, prefix.size) == 0);
}

bool store_watched_next(const store_watched *watched, store_bytes prefix, store_iterator *at,
                        store_watched_key *out)
{
    do {
        if (!store_table_next(watched->keys, at))
            return false;
    } while (!is_under(prefix, at->key));
    const watched_head *head = (const void *)at->value.data;
    *out = (store_watched_key){
        .key = at->key,
        .value = {.data = at->value.data + sizeof *head, .size = at->value.size - sizeof *head},
        .created = head->created,
        .set = head->set};
    return true;
}

bool store_watched_changed(const store_watched *watched, store_bytes prefix, int64_t after)
{
    store_watched_key key;
    if (after < watched->gone || after > watched->revision)
        return true;
    for (store_iterator at = {0};
         after < watched->revision && store_watched_next(watched, prefix, &at, &key);)
        if (key.set > after)
            return true;
    return false;
}

int64_t store_watched_due_ns(const store_watched *watched)
{
    return watched->due_ns;
}

void store_watched_expire(store_watched *watched)
{
    int64_t now_ns = clock_now_ns();
    if (now_ns < watched->due_ns)
        return;
    watched->due_ns = INT64_MAX;
    for (store_iterator at = {0}; store_table_next(watched->keys, &at);) {
        const watched_head *head = (const void *)at.value.data;
        if (head->end_ns != 0 && now_ns >= head->end_ns)
            drop(watched, at.key);
        else if (head->end_ns != 0 && head->end_ns < watched->due_ns)
            watched->due_ns = head->end_ns;
    }
}

void store_watched_release(store_watched *watched, const void *owner)
{
    for (store_iterator at = {0}; store_table_next(watched->keys, &at);) {
        const watched_head *head = (const void *)at.value.data;
        if (head->goes_with_owner && head->owner == owner)
            drop(watched, at.key);
    }
}
