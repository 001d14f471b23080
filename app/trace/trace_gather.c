#include "app/trace/trace_gather.h"

#include "app/common/version.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/memory.h"
#include "dist/membership/keys.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE_BYTES = 4 << 20, /* of a value of the store, at most; whole events */
    PIECES_MAX = 64,       /* of one rank: a quarter of what the store holds */
    TAKE_OVER_MS = 300,    /* for rank 0 to begin to write, after a failure */
};

static const char BETWEEN[] = ",\n"; /* two events; nowhere else */

/* The value of "trace/<rank>" in the store. */
static json_t *describe_part(const char *about, size_t pieces)
{
    json_t *part = json_object();
    json_object_set_new(part, "about", json_text_parse(about, strlen(about), 0, NULL));
    json_object_set_new(part, "pieces", json_integer((json_int_t)pieces));
    return part;
}

static keys_text piece_key(int rank, size_t piece)
{
    return keys_make_of("", KEYS_TRACE, rank, (int)piece);
}

/* How many bytes of the events go into the next piece: all, or to the end of an event. 0: it is too
 * long. */
static size_t piece_bytes(const char *events, size_t left)
{
    if (left <= PIECE_BYTES)
        return left;
    size_t n = PIECE_BYTES;
    while (n > 0 && memcmp(events + n, BETWEEN, strlen(BETWEEN)) != 0)
        n--;
    return n;
}

/* The pieces first: who finds the description finds all. */
static status publish(const trace_gathering *g, const char *about, const char *events)
{
    char *text = NULL;
    size_t left = strlen(events), pieces = 0;
    for (; left > 0; pieces++) {
        size_t n = piece_bytes(events, left);
        if (n == 0 || pieces == PIECES_MAX)
            return FAIL(STATUS_INVALID, "%zu MiB of trace are too many: give --trace-steps less",
                        strlen(events) >> 20);
        TRY(store_set(g->shared, piece_key(g->rank, pieces).text, events, n));
        n += n < left ? strlen(BETWEEN) : 0;
        events += n;
        left -= n;
    }
    json_t *part = describe_part(about, pieces);
    status st = json_text_print(part, JSON_COMPACT, &text);
    json_decref(part);
    if (st != STATUS_OK)
        return st;
    st = store_set(g->shared, keys_make("", KEYS_TRACE, g->rank).text, text, strlen(text));
    free(text);
    return st;
}

/* Another process wrote it: one that is not JSON would spoil the file for all. */
static status check_events(int rank, const char *events, size_t size_bytes)
{
    char *list = NULL;
    json_error_t error;
    if (size_bytes > PIECE_BYTES)
        return FAIL(STATUS_PEER, "rank %d: a piece of %zu bytes", rank, size_bytes);
    TRY(memory_alloc(size_bytes + 3, (void **)&list));
    list[0] = '[';
    memcpy(list + 1, events, size_bytes);
    list[size_bytes + 1] = ']';
    json_t *parsed = json_text_parse(list, size_bytes + 2, 0, &error);
    free(list);
    if (parsed == NULL)
        return FAIL(STATUS_PEER, "rank %d: its part of the trace is no JSON: %s", rank, error.text);
    json_decref(parsed);
    return STATUS_OK;
}

/* Puts the pieces into `events`, one after the other as they come, and forgets them. */
static status fetch_pieces(store *shared, int rank, int64_t pieces, byte_buffer *events)
{
    for (int64_t piece = 0; piece < pieces; piece++) {
        keys_text key = piece_key(rank, (size_t)piece);
        void *value = NULL;
        size_t size_bytes = 0;
        bool deleted = false;
        TRY(store_get(shared, key.text, &value, &size_bytes));
        status st = check_events(rank, value, size_bytes);
        if (st == STATUS_OK && piece > 0)
            st = byte_buffer_append(events, BETWEEN, strlen(BETWEEN));
        if (st == STATUS_OK)
            st = byte_buffer_append(events, value, size_bytes);
        free(value);
        TRY(st);
        TRY(store_delete(shared, key.text, &deleted));
    }
    return STATUS_OK;
}

/* What it says of its size is believed as far as it comes: memory follows what is there. *about is
 * the caller's to decref, `events` to free, whatever comes of it. */
static status fetch(const trace_gathering *g, int rank, int64_t deadline_ns, json_t **about,
                    byte_buffer *events)
{
    keys_text key = keys_make("", KEYS_TRACE, rank);
    void *text = NULL;
    size_t got = 0;
    TRY(store_wait(g->shared, key.text, clock_remaining_ms(deadline_ns)));
    TRY(store_get(g->shared, key.text, &text, &got));
    json_t *part = json_text_parse(text, strlen(text), 0, NULL);
    free(text);
    int64_t pieces = json_integer_value(json_object_get(part, "pieces"));
    json_t *its = json_incref(json_object_get(part, "about"));
    json_decref(part);
    status st = STATUS_OK;
    if (!json_is_object(its) || pieces < 1 || pieces > PIECES_MAX)
        st = FAIL(STATUS_PEER, "rank %d: its part of the trace makes no sense", rank);
    if (st == STATUS_OK)
        st = fetch_pieces(g->shared, rank, pieces, events);
    if (st == STATUS_OK)
        *about = its;
    else
        json_decref(its);
    return st;
}

/* The object after the events: takes `ranks`. */
static status closing(const trace_gathering *g, json_t *ranks, char **out)
{
    static const char *const endings[] = {"done", "stopped", "failed"};
    json_t *other = json_object();
    json_object_set_new(other, "system", json_string("mnist_ddp " MNIST_DDP_VERSION));
    json_object_set_new(other, "run", json_string(endings[g->ending]));
    json_object_set_new(other, "world_size", json_integer(g->world_size));
    json_object_set_new(other, "generation", json_integer(g->attempt));
    json_object_set_new(other, "ranks", ranks);
    status st = json_text_print(other, JSON_COMPACT, out);
    json_decref(other);
    return st;
}

static const char OPENING[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";

static status write_file(const trace_gathering *g, const char *path, const char *events,
                         size_t size_bytes, json_t *ranks)
{
    char *end = NULL;
    TRY(closing(g, ranks, &end));
    static const char other[] = "\n],\"otherData\":";
    const file_part parts[] = {{OPENING, sizeof OPENING - 1},
                               {events, size_bytes},
                               {other, sizeof other - 1},
                               {end, strlen(end)},
                               {"}\n", 2}};
    status st = file_replace(path, parts, sizeof parts / sizeof parts[0]);
    free(end);
    return st;
}

status trace_gather_start(const trace_gathering *g)
{
    trace_gathering killed = *g;
    killed.ending = TRACE_FAILED;
    return status_context(write_file(&killed, g->path, "", 0, json_array()), "--trace");
}

/* One part, after those that are there. */
static status add_part(byte_buffer *all, const void *events, size_t size_bytes, int *parts)
{
    if ((*parts)++ > 0)
        TRY(byte_buffer_append(all, BETWEEN, strlen(BETWEEN)));
    return byte_buffer_append(all, events, size_bytes);
}

/* All parts that there are, one after the other. */
static status gather(const trace_gathering *g, const char *about, const char *events, int *parts)
{
    status st = STATUS_OK;
    byte_buffer all = {0};
    int64_t deadline_ns = clock_deadline_ns(g->wait_ms);
    json_t *ranks = json_array();
    *parts = 0;
    for (int rank = 0; rank < g->world_size && st == STATUS_OK; rank++) {
        json_t *its = NULL;
        byte_buffer fetched = {0};
        if (rank == g->rank) {
            its = json_text_parse(about, strlen(about), 0, NULL);
            st = its != NULL ? add_part(&all, events, strlen(events), parts)
                             : FAIL(STATUS_NO_MEMORY, "the trace");
        } else if (fetch(g, rank, deadline_ns, &its, &fetched) == STATUS_OK) {
            st = add_part(&all, fetched.data, fetched.size, parts);
        } else if (g->ending != TRACE_FAILED) {
            LOG_W("the trace is without rank %d: %s", rank, status_text());
        }
        if (its != NULL)
            json_array_append_new(ranks, its);
        byte_buffer_free(&fetched);
    }
    if (st == STATUS_OK)
        st = write_file(g, g->path, (const char *)all.data, all.size, ranks);
    else
        json_decref(ranks);
    byte_buffer_free(&all);
    return st;
}

/* After a failure one rank writes the file: *mine if it is this one. */
static status elect_writer(const trace_gathering *g, bool *mine)
{
    char own[16];
    void *writer = NULL;
    size_t size_bytes = 0;
    if (g->rank > 0) /* rank 0 comes first, if it is there */
        (void)store_wait(g->shared, KEYS_TRACE_WRITER, TAKE_OVER_MS);
    snprintf(own, sizeof own, "%d", g->rank);
    TRY(store_compare_set(g->shared, KEYS_TRACE_WRITER, "", own, &writer, &size_bytes));
    *mine = strcmp(writer, own) == 0;
    free(writer);
    return STATUS_OK;
}

static status write_beside(const trace_gathering *g, const char *about, const char *events)
{
    char path[FILE_PATH_BYTES];
    json_t *ranks = json_array();
    json_array_append_new(ranks, json_text_parse(about, strlen(about), 0, NULL));
    int length = snprintf(path, sizeof path, "%s.rank%d", g->path, g->rank);
    if (length < 0 || length >= FILE_PATH_BYTES) {
        json_decref(ranks);
        return FAIL(STATUS_INVALID, "path too long: %.64s...", g->path);
    }
    TRY(write_file(g, path, events, strlen(events), ranks));
    LOG_W("rank 0 is gone, and the store with it: this rank's part of the trace is %s", path);
    return STATUS_OK;
}

status trace_gather(const trace_gathering *g, const char *about, const char *events, int *parts)
{
    *parts = 0;
    if (g->shared == NULL)
        return gather(g, about, events, parts);
    bool mine = g->rank == 0;
    status st = publish(g, about, events);
    if (st == STATUS_OK && g->ending == TRACE_FAILED)
        st = elect_writer(g, &mine);
    if (st != STATUS_OK && g->ending == TRACE_FAILED) {
        if (g->rank > 0)
            return write_beside(g, about, events);
        trace_gathering alone = *g; /* nobody can be asked */
        alone.world_size = 1;
        return gather(&alone, about, events, parts);
    }
    return st == STATUS_OK && mine ? gather(g, about, events, parts) : st;
}
