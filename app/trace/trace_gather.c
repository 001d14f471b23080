#include "app/trace/trace_gather.h"

#include "app/version.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_BYTES = 64,
    PIECE_BYTES = 4 << 20, /* of a value of the store */
    PIECES_MAX = 1024,
    TAKE_OVER_MS = 300, /* for rank 0 to begin to write, after a failure */
};

static const char WRITER[] = "trace/writer"; /* key: the rank that writes the file */

/* What is behind "trace/<rank>" in the store. */
static json_t *describe_part(const char *about, size_t size_bytes)
{
    json_t *part = json_object();
    json_object_set_new(part, "about", json_loads(about, 0, NULL));
    json_object_set_new(part, "bytes", json_integer((json_int_t)size_bytes));
    return part;
}

static void piece_key(int rank, size_t piece, char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "trace/%d/%zu", rank, piece);
}

/* The pieces first: who finds the description finds all. */
static status publish(const trace_gathering *g, const char *about, const char *events)
{
    char key[KEY_BYTES];
    size_t size_bytes = strlen(events);
    if (size_bytes > (size_t)PIECE_BYTES * PIECES_MAX)
        return FAIL(STATUS_INVALID, "%zu bytes of trace are too many: give --trace-steps less",
                    size_bytes);
    for (size_t at = 0, piece = 0; at < size_bytes; at += PIECE_BYTES, piece++) {
        size_t left = size_bytes - at;
        piece_key(g->rank, piece, key);
        TRY(store_set(g->shared, key, events + at, left < PIECE_BYTES ? left : PIECE_BYTES));
    }
    json_t *part = describe_part(about, size_bytes);
    char *text = json_dumps(part, JSON_COMPACT);
    json_decref(part);
    if (text == NULL)
        return FAIL(STATUS_NO_MEMORY, "a part of the trace");
    snprintf(key, sizeof key, "trace/%d", g->rank);
    status st = store_set(g->shared, key, text, strlen(text));
    free(text);
    return st;
}

/* Reads the pieces into `events`, size_bytes and a zero, and forgets them. */
static status fetch_pieces(store *shared, int rank, char *events, size_t size_bytes)
{
    for (size_t at = 0, piece = 0; at < size_bytes; piece++) {
        char key[KEY_BYTES];
        void *value = NULL;
        size_t got = 0;
        bool deleted = false;
        piece_key(rank, piece, key);
        TRY(store_get(shared, key, &value, &got));
        bool fits = got > 0 && got <= size_bytes - at;
        if (fits)
            memcpy(events + at, value, got);
        free(value);
        if (!fits)
            return FAIL(STATUS_PEER, "rank %d: a piece of %zu bytes, %zu are left", rank, got,
                        size_bytes - at);
        at += got;
        TRY(store_delete(shared, key, &deleted));
    }
    return STATUS_OK;
}

/* Another process wrote it: one that is not JSON would spoil the file for all. */
static status check_events(int rank, const char *events, size_t size_bytes)
{
    char *list = NULL;
    json_error_t error;
    TRY(memory_alloc(size_bytes + 3, (void **)&list));
    list[0] = '[';
    memcpy(list + 1, events, size_bytes);
    list[size_bytes + 1] = ']';
    json_t *parsed = json_loadb(list, size_bytes + 2, 0, &error);
    free(list);
    if (parsed == NULL)
        return FAIL(STATUS_PEER, "rank %d: its part of the trace is no JSON: %s", rank, error.text);
    json_decref(parsed);
    return STATUS_OK;
}

/* *events is the caller's to free, *about its to decref. */
static status fetch(const trace_gathering *g, int rank, int64_t deadline_ns, json_t **about,
                    char **events)
{
    char key[KEY_BYTES];
    void *text = NULL;
    char *all = NULL;
    size_t got = 0;
    snprintf(key, sizeof key, "trace/%d", rank);
    TRY(store_wait(g->shared, key, clock_remaining_ms(deadline_ns)));
    TRY(store_get(g->shared, key, &text, &got));
    json_t *part = json_loads(text, 0, NULL);
    free(text);
    json_int_t size = json_integer_value(json_object_get(part, "bytes"));
    json_t *its = json_incref(json_object_get(part, "about"));
    json_decref(part);
    status st = STATUS_OK;
    if (!json_is_object(its) || size < 1 || size > (json_int_t)PIECE_BYTES * PIECES_MAX)
        st = FAIL(STATUS_PEER, "rank %d: its part of the trace makes no sense", rank);
    if (st == STATUS_OK)
        st = memory_alloc((size_t)size + 1, (void **)&all);
    if (st == STATUS_OK)
        st = fetch_pieces(g->shared, rank, all, (size_t)size);
    if (st == STATUS_OK)
        st = check_events(rank, all, (size_t)size);
    if (st != STATUS_OK) {
        json_decref(its);
        free(all);
        return st;
    }
    *about = its;
    *events = all;
    return STATUS_OK;
}

/* What stands behind the events: takes `ranks`. */
static char *closing(const trace_gathering *g, json_t *ranks)
{
    static const char *const endings[] = {"done", "stopped", "failed"};
    json_t *other = json_object();
    json_object_set_new(other, "system", json_string("mnist_ddp " MNIST_DDP_VERSION));
    json_object_set_new(other, "run", json_string(endings[g->ending]));
    json_object_set_new(other, "world_size", json_integer(g->world_size));
    json_object_set_new(other, "generation", json_integer(g->generation));
    json_object_set_new(other, "ranks", ranks);
    char *text = json_dumps(other, JSON_COMPACT);
    json_decref(other);
    return text;
}

static const char OPENING[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";

static status write_file(const trace_gathering *g, const char *path, const char *events,
                         size_t size_bytes, json_t *ranks)
{
    char *behind = closing(g, ranks);
    if (behind == NULL)
        return FAIL(STATUS_NO_MEMORY, "the trace");
    static const char other[] = "\n],\"otherData\":";
    const file_part parts[] = {{OPENING, sizeof OPENING - 1},
                               {events, size_bytes},
                               {other, sizeof other - 1},
                               {behind, strlen(behind)},
                               {"}\n", 2}};
    status st = file_replace(path, parts, sizeof parts / sizeof parts[0]);
    free(behind);
    return st;
}

status trace_gather_start(const trace_gathering *g)
{
    trace_gathering killed = *g;
    killed.ending = TRACE_FAILED;
    return status_context(write_file(&killed, g->path, "", 0, json_array()), "--trace");
}

/* All parts that there are, behind each other. */
static status gather(const trace_gathering *g, const char *about, const char *events, int *parts)
{
    char *all = NULL;
    size_t size_bytes = 0;
    FILE *file = open_memstream(&all, &size_bytes);
    if (file == NULL)
        return FAIL(STATUS_NO_MEMORY, "the trace");
    int64_t deadline_ns = clock_deadline_ns(g->wait_ms);
    json_t *ranks = json_array();
    *parts = 0;
    for (int rank = 0; rank < g->world_size; rank++) {
        json_t *its = NULL;
        char *fetched = NULL;
        if (rank == g->rank) {
            its = json_loads(about, 0, NULL);
        } else if (fetch(g, rank, deadline_ns, &its, &fetched) != STATUS_OK) {
            if (g->ending != TRACE_FAILED)
                LOG_W("the trace is without rank %d: %s", rank, status_message());
            continue;
        }
        json_array_append_new(ranks, its);
        fprintf(file, "%s%s", (*parts)++ > 0 ? ",\n" : "", rank == g->rank ? events : fetched);
        free(fetched);
    }
    bool whole = fclose(file) == 0;
    status st = STATUS_OK;
    if (whole) {
        st = write_file(g, g->path, all, size_bytes, ranks);
    } else {
        json_decref(ranks);
        st = FAIL(STATUS_NO_MEMORY, "the trace");
    }
    free(all);
    return st;
}

/* Whether the file is this rank's to write, after a failure. */
static status claim(const trace_gathering *g, bool *mine)
{
    char own[16];
    void *writer = NULL;
    size_t size_bytes = 0;
    if (g->rank > 0) /* rank 0 comes first, if it is there */
        (void)store_wait(g->shared, WRITER, TAKE_OVER_MS);
    snprintf(own, sizeof own, "%d", g->rank);
    TRY(store_compare_set(g->shared, WRITER, "", own, &writer, &size_bytes));
    *mine = strcmp(writer, own) == 0;
    free(writer);
    return STATUS_OK;
}

static status write_beside(const trace_gathering *g, const char *about, const char *events)
{
    char path[FILE_PATH_BYTES];
    json_t *ranks = json_array();
    json_array_append_new(ranks, json_loads(about, 0, NULL));
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
        st = claim(g, &mine);
    if (st != STATUS_OK && g->ending == TRACE_FAILED) {
        if (g->rank > 0)
            return write_beside(g, about, events);
        trace_gathering alone = *g; /* nobody can be asked */
        alone.world_size = 1;
        return gather(&alone, about, events, parts);
    }
    return st == STATUS_OK && mine ? gather(g, about, events, parts) : st;
}
