#include "dist/store/store_watched.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    FIRST_ENTRIES = 64,
    OVERHEAD_BYTES = 64, /* of an entry: malloc's, for two blocks, and its place in the order */
};

typedef struct entry {
    int64_t created, set;
    int64_t ttl_ms, end_ns; /* 0: no lease */
    const void *owner;
    bool goes_with_owner;
    size_t key_size, value_size;
    uint8_t *value;
    uint8_t key[];
} entry;

/* In the order of the keys: all of a prefix lie together. */
struct store_watched {
    entry **entries;
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

static void entry_free(entry *e)
{
    free(e->value);
    free(e);
}

void store_watched_destroy(store_watched *watched)
{
    if (watched == NULL)
        return;
    for (size_t i = 0; i < watched->count; i++)
        entry_free(watched->entries[i]);
    free(watched->entries);
    free(watched);
}

int64_t store_watched_revision(const store_watched *watched)
{
    return watched->revision;
}

static int compare(const entry *e, store_bytes key)
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
static entry *find(const store_watched *watched, store_bytes key, size_t *place)
{
    *place = place_of(watched, key);
    bool there = *place < watched->count && compare(watched->entries[*place], key) == 0;
    return there ? watched->entries[*place] : NULL;
}

static size_t entry_bytes(const entry *e)
{
    return sizeof *e + e->key_size + e->value_size + OVERHEAD_BYTES;
}

/* Takes the entry out, not yet told. */
static void drop(store_watched *watched, size_t place)
{
    entry *e = watched->entries[place];
    watched->count--;
    memmove(watched->entries + place, watched->entries + place + 1,
            (watched->count - place) * sizeof(entry *));
    watched->used_bytes -= entry_bytes(e);
    watched->gone = ++watched->revision;
    watched->on_change(watched->ctx, (store_bytes){.data = e->key, .size = e->key_size});
    entry_free(e);
}

static status make_room(store_watched *watched)
{
    if (watched->count < watched->capacity)
        return STATUS_OK;
    size_t capacity = watched->capacity > 0 ? watched->capacity * 2 : FIRST_ENTRIES;
    entry **entries = realloc(watched->entries, capacity * sizeof(entry *));
    if (entries == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu watched keys", capacity);
    watched->entries = entries;
    watched->capacity = capacity;
    return STATUS_OK;
}

static status add(store_watched *watched, store_bytes key, size_t place, entry **out)
{
    TRY(make_room(watched));
    entry *e = calloc(1, sizeof *e + key.size);
    if (e == NULL)
        return FAIL(STATUS_NO_MEMORY, "a key of %zu bytes", key.size);
    e->key_size = key.size;
    memcpy(e->key, key.data, key.size);
    memmove(watched->entries + place + 1, watched->entries + place,
            (watched->count - place) * sizeof(entry *));
    watched->entries[place] = e;
    watched->count++;
    watched->used_bytes += entry_bytes(e);
    *out = e;
    return STATUS_OK;
}

static void begin_lease(store_watched *watched, entry *e, const void *owner)
{
    e->owner = owner;
    e->end_ns = e->ttl_ms > 0 ? clock_deadline_ns(e->ttl_ms) : 0;
    if (e->end_ns != 0 && e->end_ns < watched->due_ns)
        watched->due_ns = e->end_ns;
}

status store_watched_set(store_watched *watched, const store_watched_put *put, int64_t *revision)
{
    size_t place;
    entry *e = find(watched, put->key, &place);
    *revision = 0;
    if (put->expected >= 0 && put->expected != (e != NULL ? e->set : 0))
        return STATUS_OK;
    size_t freed = e != NULL ? e->value_size : 0;
    size_t added = put->value.size + (e != NULL ? 0 : sizeof *e + put->key.size + OVERHEAD_BYTES);
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
    entry *e = find(watched, key, &place);
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

static bool begins_with(const entry *e, store_bytes prefix)
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
    const entry *e = watched->entries[i];
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
        const entry *e = watched->entries[i - 1];
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
