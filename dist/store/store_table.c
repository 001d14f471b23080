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

enum {
    FIRST_ENTRIES = 64,
    WATCHED_OVERHEAD_BYTES =
        64, /* of an entry: malloc's, for two blocks, and its place in the order */
};

typedef struct watched_entry {
    int64_t created, set;
    int64_t ttl_ms, end_ns; /* 0: no lease */
    const void *owner;
    bool goes_with_owner;
    size_t key_size, value_size;
    uint8_t *value;
    uint8_t key[];
} watched_entry;

/* In the order of the keys: all of a prefix lie together. */
struct store_watched {
    watched_entry **entries;
    size_t count, capacity;
    size_t used_bytes, limit_bytes;
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
    *watched = (store_watched){.limit_bytes = limit_bytes,
                               .revision = first_revision(),
                               .due_ns = INT64_MAX,
                               .on_change = on_change,
                               .ctx = ctx};
    watched->gone = watched->revision;
    *out = watched;
    return STATUS_OK;
}

static void watched_entry_free(watched_entry *e)
{
    free(e->value);
    free(e);
}

void store_watched_destroy(store_watched *watched)
{
    if (watched == NULL)
        return;
    for (size_t i = 0; i < watched->count; i++)
        watched_entry_free(watched->entries[i]);
    free(watched->entries);
    free(watched);
}

int64_t store_watched_revision(const store_watched *watched)
{
    return watched->revision;
}

static int compare(const watched_entry *e, store_bytes key)
{
    size_t n = e->key_size < key.size ? e->key_size : key.size;
    int order = n > 0 ? memcmp(e->key, key.data, n) : 0;
    return order != 0 ? order : (e->key_size > key.size) - (e->key_size < key.size);
}

/* The place of the first key that is not before this one. */
static size_t place_of(const store_watched *watched, store_bytes key)
{
    size_t from = 0, to = watched->count;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (compare(watched->entries[middle], key) < 0)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* The key's entry, or NULL. */
static watched_entry *find(const store_watched *watched, store_bytes key, size_t *place)
{
    *place = place_of(watched, key);
    bool there = *place < watched->count && compare(watched->entries[*place], key) == 0;
    return there ? watched->entries[*place] : NULL;
}

static size_t watched_entry_bytes(const watched_entry *e)
{
    return sizeof *e + e->key_size + e->value_size + WATCHED_OVERHEAD_BYTES;
}

/* Takes the entry out, and reports it. */
static void drop(store_watched *watched, size_t place)
{
    watched_entry *e = watched->entries[place];
    watched->count--;
    memmove(watched->entries + place, watched->entries + place + 1,
            (watched->count - place) * sizeof(watched_entry *));
    watched->used_bytes -= watched_entry_bytes(e);
    watched->gone = ++watched->revision;
    watched->on_change(watched->ctx, (store_bytes){.data = e->key, .size = e->key_size});
    watched_entry_free(e);
}

static status make_watched_room(store_watched *watched)
{
    if (watched->count < watched->capacity)
        return STATUS_OK;
    size_t capacity = watched->capacity > 0 ? watched->capacity * 2 : FIRST_ENTRIES;
    watched_entry **entries = realloc(watched->entries, capacity * sizeof(watched_entry *));
    if (entries == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu watched keys", capacity);
    watched->entries = entries;
    watched->capacity = capacity;
    return STATUS_OK;
}

static status add(store_watched *watched, store_bytes key, size_t place, watched_entry **out)
{
    TRY(make_watched_room(watched));
    watched_entry *e = calloc(1, sizeof *e + key.size);
    if (e == NULL)
        return FAIL(STATUS_NO_MEMORY, "a key of %zu bytes", key.size);
    e->key_size = key.size;
    memcpy(e->key, key.data, key.size);
    memmove(watched->entries + place + 1, watched->entries + place,
            (watched->count - place) * sizeof(watched_entry *));
    watched->entries[place] = e;
    watched->count++;
    watched->used_bytes += watched_entry_bytes(e);
    *out = e;
    return STATUS_OK;
}

static void begin_lease(store_watched *watched, watched_entry *e, const void *owner)
{
    e->owner = owner;
    e->end_ns = e->ttl_ms > 0 ? clock_deadline_ns(e->ttl_ms) : 0;
    if (e->end_ns != 0 && e->end_ns < watched->due_ns)
        watched->due_ns = e->end_ns;
}

status store_watched_set(store_watched *watched, const store_watched_put *put, int64_t *revision)
{
    size_t place;
    watched_entry *e = find(watched, put->key, &place);
    *revision = 0;
    if (put->expected >= 0 && put->expected != (e != NULL ? e->set : 0))
        return STATUS_OK;
    size_t freed = e != NULL ? e->value_size : 0;
    size_t added =
        put->value.size + (e != NULL ? 0 : sizeof *e + put->key.size + WATCHED_OVERHEAD_BYTES);
    if (added > watched->limit_bytes - (watched->used_bytes - freed))
        return FAIL(STATUS_NO_MEMORY, "the watched keys are full: they hold at most %zu bytes",
                    watched->limit_bytes);
    uint8_t *value = malloc(put->value.size + 1);
    if (value == NULL)
        return FAIL(STATUS_NO_MEMORY, "a value of %zu bytes", put->value.size);
    if (put->value.size > 0)
        memcpy(value, put->value.data, put->value.size);
    status st = e != NULL ? STATUS_OK : add(watched, put->key, place, &e);
    if (st != STATUS_OK) {
        free(value);
        return st;
    }
    free(e->value);
    e->value = value;
    e->value_size = put->value.size;
    watched->used_bytes = watched->used_bytes - freed + put->value.size;
    e->set = ++watched->revision;
    if (e->created == 0)
        e->created = e->set;
    e->goes_with_owner = put->goes_with_owner;
    e->ttl_ms = put->ttl_ms > 0 && put->ttl_ms < STORE_TTL_MS ? STORE_TTL_MS : put->ttl_ms;
    begin_lease(watched, e, put->owner);
    *revision = e->set;
    watched->on_change(watched->ctx, put->key);
    return STATUS_OK;
}

bool store_watched_renew(store_watched *watched, store_bytes key, const void *owner)
{
    size_t place;
    watched_entry *e = find(watched, key, &place);
    if (e != NULL)
        begin_lease(watched, e, owner);
    return e != NULL;
}

bool store_watched_remove(store_watched *watched, store_bytes key)
{
    size_t place;
    if (find(watched, key, &place) == NULL)
        return false;
    drop(watched, place);
    return true;
}

static bool begins_with(const watched_entry *e, store_bytes prefix)
{
    bool folder = prefix.size > 0 && prefix.data[prefix.size - 1] == '/';
    return folder ? e->key_size >= prefix.size && memcmp(e->key, prefix.data, prefix.size) == 0
                  : compare(e, prefix) == 0;
}

size_t store_watched_count(const store_watched *watched, store_bytes prefix, size_t *first)
{
    size_t n = 0;
    *first = place_of(watched, prefix);
    while (*first + n < watched->count && begins_with(watched->entries[*first + n], prefix))
        n++;
    return n;
}

store_watched_key store_watched_at(const store_watched *watched, size_t i)
{
    const watched_entry *e = watched->entries[i];
    return (store_watched_key){.key = {.data = e->key, .size = e->key_size},
                               .value = {.data = e->value, .size = e->value_size},
                               .created = e->created,
                               .set = e->set};
}

bool store_watched_changed(const store_watched *watched, store_bytes prefix, int64_t after)
{
    if (after < watched->gone || after > watched->revision)
        return true;
    size_t first, n = after < watched->revision ? store_watched_count(watched, prefix, &first) : 0;
    for (size_t i = 0; i < n; i++)
        if (watched->entries[first + i]->set > after)
            return true;
    return false;
}

int64_t store_watched_due_ns(const store_watched *watched)
{
    return watched->due_ns;
}

void store_watched_expire(store_watched *watched)
{
    int64_t now = clock_now_ns();
    if (now < watched->due_ns)
        return;
    watched->due_ns = INT64_MAX;
    for (size_t i = watched->count; i > 0; i--) {
        const watched_entry *e = watched->entries[i - 1];
        if (e->end_ns != 0 && now >= e->end_ns)
            drop(watched, i - 1);
        else if (e->end_ns != 0 && e->end_ns < watched->due_ns)
            watched->due_ns = e->end_ns;
    }
}

void store_watched_release(store_watched *watched, const void *owner)
{
    for (size_t i = watched->count; i > 0; i--)
        if (watched->entries[i - 1]->goes_with_owner && watched->entries[i - 1]->owner == owner)
            drop(watched, i - 1);
}
