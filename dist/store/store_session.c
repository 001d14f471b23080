#include "dist/store/store_session.h"

#include "base/clock.h"
#include "base/digest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    FIRST_BUCKETS = 64,
    OVERHEAD_BYTES = 64, /* an entry's: malloc's, for two blocks, and the bucket's */
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

/* Appends `more`, which lies outside the table, to the value; a key that is not there has none.
 * Costs what it appends, taken over all calls. STATUS_INVALID if the value would become longer than
 * `limit_bytes`, STATUS_NO_MEMORY beyond the table's limit: nothing changes then. */
static status append(store_table *table, store_bytes key, store_bytes more, size_t limit_bytes)
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

/* Queues of the store, by key. They lie in a table of their own, as pieces: where a queue begins
 * and ends, and each of its values. A queue that is empty is not there. */

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

/* STATUS_NO_MEMORY beyond the table's limit: nothing is pushed then. */
static status queue_push(store_table *queues, store_bytes key, store_bytes value)
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

/* How many values it holds; if any, *value is the one that is there longest, until the table
 * changes. */
static uint64_t queue_look(const store_table *queues, store_bytes key, store_bytes *value)
{
    piece first;
    queue_ends ends = read_ends(queues, key);
    if (ends.first < ends.end)
        (void)store_table_find(queues, name_piece(&first, key, ends.first), value);
    return ends.end - ends.first;
}

/* Takes that one out. */
static status queue_drop(store_table *queues, store_bytes key)
{
    piece first;
    queue_ends ends = read_ends(queues, key);
    (void)store_table_delete(queues, name_piece(&first, key, ends.first++));
    return write_ends(queues, key, ends);
}

/* Watched keys lie in a table of their own, each value after its head. */

typedef struct watched_head {
    int64_t created, set;   /* the revisions that made the key and that set it last */
    int64_t ttl_ms, end_ns; /* its lease's; 0: it has none */
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

typedef struct watched_put {
    store_bytes key, value;
    int64_t expected;  /* the revision that has set it; 0: it is not there; -1: whatever is there */
    int64_t ttl_ms;    /* 0: no lease. At least STORE_TTL_MS else. */
    const void *owner; /* the connection that is the first to go */
    bool goes_with_owner;
} watched_put;

/* Sets the key, whose lease begins anew; *revision is what set it, 0 if it is not as expected.
 * STATUS_NO_MEMORY beyond the limit: nothing changes then. */
static status watched_set(store_watched *watched, const watched_put *put, int64_t *revision)
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

/* Renews the lease, for the owner from now on. That is no change. false: the key is not there. */
static bool watched_renew(store_watched *watched, store_bytes key, const void *owner)
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

/* Whether it was there. */
static bool watched_remove(store_watched *watched, store_bytes key)
{
    bool there = find_head(watched, key) != NULL;
    if (there)
        drop(watched, key);
    return there;
}

static bool is_folder(store_bytes prefix)
{
    return prefix.size > 0 && prefix.data[prefix.size - 1] == '/';
}

static bool is_under(store_bytes folder, store_bytes key)
{
    return key.size >= folder.size && memcmp(key.data, folder.data, folder.size) == 0;
}

/* What stands under a prefix. Valid until the table changes. */
typedef struct watched_key {
    store_bytes key, value;
    int64_t created, set; /* the revisions that made it and that set it last */
} watched_key;

/* false: there is no other one. In any order. */
static bool watched_next(const store_watched *watched, store_bytes prefix, store_iterator *at,
                         watched_key *out)
{
    if (is_folder(prefix)) {
        do {
            if (!store_table_next(watched->keys, at))
                return false;
        } while (!is_under(prefix, at->key));
    } else { /* a key alone is looked up, once */
        if (at->bucket++ > 0 || !store_table_find(watched->keys, prefix, &at->value))
            return false;
        at->key = prefix;
    }
    const watched_head *head = (const void *)at->value.data;
    *out = (watched_key){
        .key = at->key,
        .value = {.data = at->value.data + sizeof *head, .size = at->value.size - sizeof *head},
        .created = head->created,
        .set = head->set};
    return true;
}

/* Whether a key of the prefix has changed since revision `after`. As what has gone is not kept, the
 * end of any key counts for all prefixes; so does a revision that is not this table's. */
static bool watched_changed(const store_watched *watched, store_bytes prefix, int64_t after)
{
    watched_key key;
    if (after < watched->gone || after > watched->revision)
        return true;
    for (store_iterator at = {0};
         after < watched->revision && watched_next(watched, prefix, &at, &key);)
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

/* A conversation. */

enum {
    CHUNK_BYTES = 64 << 10,
    REQUEST_BYTES = 256, /* what the shortest request costs, in bytes touched */
};

/* What a request is executed with. */
typedef struct call {
    store_session *session;
    const store_service *service;
    store_table *table;  /* the service's */
    const uint8_t *data; /* the request; data[0] is its opcode */
    size_t at;           /* where its next part begins */
} call;

static status answer(call *c, const void *data, size_t size_bytes)
{
    byte_buffer *out = &c->session->out;
    if (size_bytes > STORE_SESSION_OUT_BYTES - out->size)
        return FAIL(STATUS_NO_MEMORY, "more than %d bytes of answers that the client does not read",
                    STORE_SESSION_OUT_BYTES);
    return byte_buffer_append(out, data, size_bytes);
}

static status answer_u8(call *c, uint8_t x)
{
    return answer(c, &x, 1);
}

static status answer_i64(call *c, int64_t x)
{
    uint8_t bytes[8];
    store_wire_put_u64(bytes, (uint64_t)x);
    return answer(c, bytes, sizeof bytes);
}

static status answer_value(call *c, store_bytes value)
{
    TRY(answer_i64(c, (int64_t)value.size));
    return answer(c, value.data, value.size);
}

static uint64_t take_u64(call *c)
{
    return store_wire_take_u64(c->data, &c->at);
}

static store_bytes take_bytes(call *c)
{
    return store_wire_take_bytes(c->data, &c->at);
}

/* The key has got a value. */
static void report_set(const call *c, store_bytes key, store_wake who)
{
    c->service->on_set(c->service->ctx, key, who);
}

static status set(call *c, store_bytes key, store_bytes value)
{
    TRY(store_table_set(c->table, key, value));
    report_set(c, key, STORE_WAKE_ALL);
    return STATUS_OK;
}

/* A queue is a key, too. */
static bool is_there(const call *c, store_bytes key)
{
    store_bytes value;
    return store_table_find(c->table, key, &value) ||
           queue_look(c->service->queues, key, &value) > 0;
}

static status run_set(call *c)
{
    uint64_t n = c->data[0] == STORE_MULTI_SET ? take_u64(c) : 1;
    for (; n > 0; n--) {
        store_bytes key = take_bytes(c), value = take_bytes(c);
        TRY(set(c, key, value));
    }
    return STATUS_OK;
}

/* As torch's server: a key that is not there is set if nothing was expected; otherwise the answer
 * is what the client expected, and nothing is set. */
static status run_compare_set(call *c)
{
    store_bytes key = take_bytes(c), expected = take_bytes(c), desired = take_bytes(c), held;
    bool there = store_table_find(c->table, key, &held);
    bool match = there ? held.size == expected.size &&
                             (held.size == 0 || memcmp(held.data, expected.data, held.size) == 0)
                       : expected.size == 0;
    if (!match)
        return answer_value(c, there ? held : expected);
    TRY(set(c, key, desired));
    return answer_value(c, desired);
}

/* Counters are kept as decimal text, so that GET reads them. One that is not there is 0. */
static status read_counter(const call *c, store_bytes key, int64_t *out)
{
    store_bytes held;
    char text[24] = "0";
    if (store_table_find(c->table, key, &held)) {
        size_t size = held.size < sizeof text ? held.size : sizeof text - 1;
        if (size > 0)
            memcpy(text, held.data, size);
        text[size] = '\0';
    }
    char *end;
    errno = 0;
    long long old = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0)
        return FAIL(STATUS_PEER, "a counter that holds no number: \"%s\"", text);
    *out = old;
    return STATUS_OK;
}

/* Not reported. */
static status set_counter(const call *c, store_bytes key, int64_t number)
{
    char text[24];
    size_t length = (size_t)snprintf(text, sizeof text, "%" PRId64, number);
    return store_table_set(c->table, key, (store_bytes){(uint8_t *)text, length});
}

static status run_add(call *c)
{
    store_bytes key = take_bytes(c);
    uint64_t amount = take_u64(c);
    int64_t sum;
    TRY(read_counter(c, key, &sum));
    sum = (int64_t)((uint64_t)sum + amount);
    TRY(set_counter(c, key, sum));
    report_set(c, key, STORE_WAKE_ALL);
    return answer_i64(c, sum);
}

static status run_append(call *c)
{
    store_bytes key = take_bytes(c), more = take_bytes(c);
    status st = append(c->table, key, more, STORE_VALUE_BYTES);
    if (st == STATUS_INVALID)
        return FAIL(STATUS_PEER, "APPEND: %s", status_text());
    TRY(st);
    report_set(c, key, STORE_WAKE_ALL);
    return STATUS_OK;
}

static status run_check(call *c)
{
    uint8_t result = STORE_CHECK_READY;
    for (uint64_t n = take_u64(c); n > 0; n--) {
        if (!is_there(c, take_bytes(c)))
            result = STORE_CHECK_NOT_READY;
    }
    return answer_u8(c, result);
}

/* Looks for the keys from c->at on, `n` of them. If one is not there the session waits for it.
 */
static void await_keys(call *c, uint64_t n)
{
    store_session *session = c->session;
    session->waiting = false;
    for (; n > 0; n--) {
        size_t at = c->at;
        if (!is_there(c, take_bytes(c))) {
            session->waiting = true;
            session->awaited_at = at;
            session->awaited = n;
            return;
        }
    }
}

/* GET and MULTI_GET once all keys have been there. One may be gone again: then the wait goes on
 * from that key, before any value is copied. */
static status answer_values(call *c, uint64_t n)
{
    size_t first = c->at;
    await_keys(c, n);
    if (c->session->waiting)
        return STATUS_OK;
    for (c->at = first; n > 0; n--) {
        store_bytes value = {0};
        (void)store_table_find(c->table, take_bytes(c), &value);
        TRY(answer_value(c, value));
    }
    return STATUS_OK;
}

/* GET, MULTI_GET and WAIT, also when they are taken up again. */
static status run_waiting(call *c)
{
    store_session *session = c->session;
    uint64_t n = c->data[0] == STORE_GET ? 1 : take_u64(c);
    size_t first = c->at;
    if (session->awaited > 0) {
        c->at = session->awaited_at;
        await_keys(c, session->awaited);
    } else {
        await_keys(c, n);
    }
    if (session->waiting)
        return STATUS_OK;
    if (c->data[0] == STORE_WAIT)
        return answer_u8(c, STORE_WAIT_ENDED);
    c->at = first;
    return answer_values(c, n);
}

/* Of those that wait for the queue only one may go on: it is to find a value there. */
static status run_queue_push(call *c)
{
    store_bytes key = take_bytes(c), value = take_bytes(c);
    TRY(queue_push(c->service->queues, key, value));
    report_set(c, key, STORE_WAKE_ONE);
    return STATUS_OK;
}

static status run_queue_pop(call *c)
{
    store_bytes key = take_bytes(c), first = {0};
    uint64_t length = queue_look(c->service->queues, key, &first);
    TRY(answer_i64(c, (int64_t)length));
    if (length == 0)
        return STATUS_OK;
    TRY(answer_value(c, first));
    return queue_drop(c->service->queues, key);
}

static status run_queue_len(call *c)
{
    store_bytes first;
    return answer_i64(c, (int64_t)queue_look(c->service->queues, take_bytes(c), &first));
}

/* Counts the caller, once; it waits until as many have come. Also when it is taken up again. */
static status run_barrier(call *c)
{
    store_session *session = c->session;
    size_t at = c->at;
    store_bytes key = take_bytes(c);
    int64_t n = (int64_t)take_u64(c), come;
    TRY(read_counter(c, key, &come));
    if (session->awaited == 0)
        TRY(set_counter(c, key, ++come));
    if (session->awaited == 0 && come >= n)
        report_set(c, key, STORE_WAKE_ALL);
    session->waiting = come < n;
    session->awaited = 1;
    session->awaited_at = at;
    return session->waiting ? STATUS_OK : answer_u8(c, STORE_WAIT_ENDED);
}

/* A time that came over the wire. */
static status take_ms(call *c, int64_t *ms)
{
    *ms = (int64_t)take_u64(c);
    if (*ms < 0 || *ms > STORE_LIMIT_MS)
        return FAIL(STATUS_PEER, "a time of %" PRId64 " ms, at most %d are allowed", *ms,
                    STORE_LIMIT_MS);
    return STATUS_OK;
}

static status run_put(call *c)
{
    int64_t revision;
    watched_put put = {.owner = c->session};
    put.key = take_bytes(c);
    put.value = take_bytes(c);
    put.expected = (int64_t)take_u64(c);
    TRY(take_ms(c, &put.ttl_ms));
    put.goes_with_owner = (store_wire_u32(c->data + c->at) & STORE_GOES_WITH_CONNECTION) != 0;
    TRY(watched_set(c->service->watched, &put, &revision));
    if (revision != 0)
        report_set(c, put.key, STORE_WAKE_ALL);
    return answer_i64(c, revision);
}

static status answer_watch(call *c, store_bytes prefix)
{
    const store_watched *watched = c->service->watched;
    const byte_buffer *out = &c->session->out;
    watched_key key;
    uint64_t n = 0;
    TRY(answer_u8(c, STORE_WAIT_ENDED));
    TRY(answer_i64(c, 0)); /* the size, once it is known */
    size_t start = out->size;
    TRY(answer_i64(c, watched->revision));
    TRY(answer_i64(c, 0)); /* likewise, the number of keys */
    for (store_iterator at = {0}; watched_next(watched, prefix, &at, &key); n++) {
        TRY(answer_value(c, key.key));
        TRY(answer_value(c, key.value));
        TRY(answer_i64(c, key.created));
        TRY(answer_i64(c, key.set));
    }
    store_wire_put_u64(out->data + start - 8, out->size - start);
    store_wire_put_u64(out->data + start + 8, n);
    return STATUS_OK;
}

/* Also when it is taken up again. */
static status run_watch(call *c)
{
    store_session *session = c->session;
    size_t at = c->at;
    store_bytes prefix = take_bytes(c);
    int64_t after = (int64_t)take_u64(c), wait_ms;
    TRY(take_ms(c, &wait_ms));
    if (session->due_ns == 0)
        session->due_ns = clock_deadline_ns(wait_ms);
    if (watched_changed(c->service->watched, prefix, after)) {
        session->waiting = false;
        return answer_watch(c, prefix);
    }
    session->waiting = !clock_passed(session->due_ns);
    session->awaited_at = at;
    return session->waiting ? STATUS_OK : answer_u8(c, STORE_WATCH_SAME);
}

static status run_num_keys(call *c)
{
    return answer_i64(c, (int64_t)store_table_count(c->table));
}

static status run_delete(call *c)
{
    return answer_i64(c, store_table_delete(c->table, take_bytes(c)) ? 1 : 0);
}

/* One that came too late: the wait is over. */
static status run_cancel_wait(call *c)
{
    return answer_u8(c, STORE_WAIT_CANCELED);
}

static status run_ping(call *c)
{
    return answer(c, c->data + 1, 4);
}

static status run_list_keys(call *c)
{
    TRY(run_num_keys(c));
    for (store_iterator at = {0}; store_table_next(c->table, &at);)
        TRY(answer_value(c, at.key));
    return STATUS_OK;
}

static status run_renew(call *c)
{
    return answer_u8(c, watched_renew(c->service->watched, take_bytes(c), c->session));
}

static status run_remove(call *c)
{
    return answer_u8(c, watched_remove(c->service->watched, take_bytes(c)));
}

/* What follows each opcode, and what it does: 'k' a key, 'v' a value, '4' and '8' a number of so
 * many bytes. 'n' is a count: all that follows it comes that many times. NULL: no such request. */
typedef struct request {
    const char *fields;
    status (*run)(call *c);
} request;

static const request REQUESTS[STORE_OWN_END] = {
    [STORE_SET] = {"kv", run_set},
    [STORE_COMPARE_SET] = {"kvv", run_compare_set},
    [STORE_GET] = {"k", run_waiting},
    [STORE_ADD] = {"k8", run_add},
    [STORE_CHECK] = {"nk", run_check},
    [STORE_WAIT] = {"nk", run_waiting},
    [STORE_GETNUMKEYS] = {"", run_num_keys},
    [STORE_DELETE_KEY] = {"k", run_delete},
    [STORE_APPEND] = {"kv", run_append},
    [STORE_MULTI_GET] = {"nk", run_waiting},
    [STORE_MULTI_SET] = {"nkv", run_set},
    [STORE_CANCEL_WAIT] = {"", run_cancel_wait},
    [STORE_PING] = {"4", run_ping},
    [STORE_QUEUE_PUSH] = {"kv", run_queue_push},
    [STORE_QUEUE_POP] = {"k", run_queue_pop},
    [STORE_QUEUE_LEN] = {"k", run_queue_len},
    [STORE_LIST_KEYS] = {"", run_list_keys},
    [STORE_BARRIER] = {"k8", run_barrier},
    [STORE_PUT] = {"kv884", run_put},
    [STORE_RENEW] = {"k", run_renew},
    [STORE_REMOVE] = {"k", run_remove},
    [STORE_WATCH] = {"k88", run_watch},
};

static const char *fields_of(uint8_t opcode)
{
    return opcode < STORE_OWN_END ? REQUESTS[opcode].fields : NULL;
}

bool store_session_knows(uint8_t opcode)
{
    return fields_of(opcode) != NULL;
}

static status execute(call *c)
{
    uint8_t opcode = c->data[0];
    if (opcode >= STORE_PUT && c->service->watched == NULL)
        return FAIL(STATUS_PEER, "this store has no watched keys");
    c->session->watches = c->session->watches || opcode >= STORE_PUT;
    return REQUESTS[opcode].run(c);
}

typedef enum scan_result {
    SCAN_PARTIAL, /* more bytes are needed */
    SCAN_WHOLE,   /* the request is data[0 .. scan->at) */
    SCAN_BAD,     /* no request begins like this; the message says why */
} scan_result;

/* Sets *length to the bytes of the field at scan->at. PARTIAL if its own length is not there yet.
 */
static scan_result field_length(const store_scan *scan, const uint8_t *data, size_t size,
                                size_t *length)
{
    char field = scan->fields[0];
    *length = field == '4' ? 4 : 8;
    if (size - scan->at < *length)
        return SCAN_PARTIAL;
    if (field == '4' || field == '8')
        return SCAN_WHOLE;
    uint64_t promised = store_wire_u64(data + scan->at);
    uint64_t limit = field == 'k'   ? STORE_KEY_BYTES
                     : field == 'v' ? STORE_VALUE_BYTES
                                    : STORE_REQUEST_KEYS;
    if (promised > limit) {
        (void)FAIL(STATUS_PEER, "a %s of %" PRIu64 ", at most %" PRIu64 " are allowed",
                   field == 'n' ? "number of keys" : "length in bytes", promised, limit);
        return SCAN_BAD;
    }
    if (field != 'n')
        *length += (size_t)promised;
    return size - scan->at < *length ? SCAN_PARTIAL : SCAN_WHOLE;
}

/* Goes on from where the scan stopped; data[0 .. size) is the request from its opcode on, grown
 * since the last call. All lengths and counts of a whole request are within the limits. Reads every
 * byte of the framing once, however the bytes come in. */
static scan_result scan_request(store_scan *scan, const uint8_t *data, size_t size)
{
    if (size == 0)
        return SCAN_PARTIAL;
    const char *all = fields_of(data[0]);
    if (all == NULL) {
        (void)FAIL(STATUS_PEER, "no request has number %d", data[0]);
        return SCAN_BAD;
    }
    if (scan->fields == NULL)
        *scan = (store_scan){.fields = all, .at = 1};
    while (scan->fields[0] != '\0') {
        size_t length;
        scan_result result = field_length(scan, data, size, &length);
        if (result == SCAN_BAD)
            return result;
        if (scan->at + length > STORE_REQUEST_BYTES) {
            (void)FAIL(STATUS_PEER, "a request of more than %d bytes", STORE_REQUEST_BYTES);
            return SCAN_BAD;
        }
        if (result == SCAN_PARTIAL)
            return result;
        if (scan->fields[0] == 'n') {
            scan->repeats = store_wire_u64(data + scan->at);
            if (scan->repeats == 0)
                scan->fields = "";
            else
                scan->fields++;
        } else {
            scan->fields++;
            if (scan->fields[0] == '\0' && scan->repeats > 1) {
                scan->repeats--;
                scan->fields = all + 1;
            }
        }
        scan->at += length;
    }
    return SCAN_WHOLE;
}

/* The request at the front is done with. */
static void next_request(store_session *session)
{
    byte_buffer_consume(&session->in, session->scan.at);
    session->scan = (store_scan){0};
    session->waiting = false;
    session->awaited = 0;
    session->due_ns = 0;
}

static status check_greeting(store_session *session)
{
    static const uint8_t greeting[STORE_GREETING_BYTES] = {
        STORE_VALIDATE, STORE_MAGIC & 0xff, STORE_MAGIC >> 8 & 0xff, STORE_MAGIC >> 16 & 0xff,
        STORE_MAGIC >> 24};
    byte_buffer *in = &session->in;
    size_t n = in->size < sizeof greeting ? in->size : sizeof greeting;
    if (n > 0 && memcmp(in->data, greeting, n) != 0)
        return FAIL(STATUS_PEER, "the greeting is not a store client's");
    if (n == sizeof greeting) {
        session->greeted = true;
        byte_buffer_consume(in, n);
    }
    return STATUS_OK;
}

/* While a request waits, only its cancellation may overtake it. */
static bool take_cancellation(store_session *session)
{
    const byte_buffer *in = &session->in;
    size_t at = session->scan.at;
    if (in->size <= at || in->data[at] != STORE_CANCEL_WAIT)
        return false;
    next_request(session);
    return true;
}

/* Executes the request at the front; takes what it has touched from the budget. */
static status execute_first(store_session *session, const store_service *service,
                            size_t *budget_bytes)
{
    size_t answered = session->out.size;
    call c = {session, service, service->table, session->in.data, 1};
    TRY(execute(&c));
    size_t touched = REQUEST_BYTES + session->scan.at + (session->out.size - answered);
    *budget_bytes -= touched < *budget_bytes ? touched : *budget_bytes;
    return STATUS_OK;
}

status store_session_run(store_session *session, const store_service *service, size_t *budget_bytes)
{
    session->pending = false;
    if (!session->greeted)
        TRY(check_greeting(session));
    while (session->greeted) {
        byte_buffer *in = &session->in;
        session->pending = *budget_bytes == 0 && in->size > 0;
        if (session->pending)
            return STATUS_OK;
        scan_result result = scan_request(&session->scan, in->data, in->size);
        if (result == SCAN_PARTIAL)
            return STATUS_OK;
        if (result == SCAN_BAD)
            return STATUS_PEER;
        if (session->waiting && take_cancellation(session))
            continue;
        TRY(execute_first(session, service, budget_bytes));
        if (!session->waiting)
            next_request(session);
        else if (!take_cancellation(session))
            return STATUS_OK;
    }
    return STATUS_OK;
}

bool store_session_awaits(const store_session *session, store_bytes *key)
{
    if (!session->waiting)
        return false;
    size_t at = session->awaited_at;
    *key = store_wire_take_bytes(session->in.data, &at);
    return true;
}

size_t store_session_read_limit(const store_session *session)
{
    if (!session->greeted)
        return STORE_GREETING_BYTES - session->in.size;
    if (session->pending ||
        (session->waiting && session->in.size - session->scan.at >= CHUNK_BYTES))
        return 0;
    return CHUNK_BYTES;
}

void store_session_close(store_session *session)
{
    byte_buffer_free(&session->in);
    byte_buffer_free(&session->out);
    *session = (store_session){0};
}
