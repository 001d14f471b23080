#include "app/trace/run_trace.h"

#include "app/common/version.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/host.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/trace.h"
#include "dist/membership/keys.h"

#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Nobody leaves a barrier before all have entered it. With true times on rank 0's clock:
 *
 *   own.entered + offset <= first.left     and     first.entered <= own.left + offset
 *
 * so that every barrier bounds the offset from both sides. The tightest bounds of a few barriers
 * are as far apart as the fastest way there and back was long; the offset is taken in their middle.
 */
enum { BARRIERS = 16 };

status trace_clock_estimate(const trace_barrier *own, const trace_barrier *first, int n,
                            trace_clock *out)
{
    int64_t low = INT64_MIN, high = INT64_MAX;
    for (int i = 0; i < n; i++) {
        int64_t at_least = first[i].entered_ns - own[i].left_ns;
        int64_t at_most = first[i].left_ns - own[i].entered_ns;
        low = at_least > low ? at_least : low;
        high = at_most < high ? at_most : high;
    }
    if (n < 1 || low > high)
        return FAIL(STATUS_INVALID, "the clocks of this rank and of rank 0 do not run alike");
    out->error_ns = (high - low + 1) / 2;
    out->offset_ns = low + out->error_ns;
    return STATUS_OK;
}

status trace_clock_compare(process_group *group, trace_clock *out, bool *fits)
{
    struct {
        trace_barrier met[BARRIERS];
        int64_t host;
    } first, own;
    own.host = (int64_t)host_number();
    for (int i = 0; i < BARRIERS; i++) {
        own.met[i].entered_ns = clock_now_ns();
        TRY(process_group_barrier(group));
        own.met[i].left_ns = clock_now_ns();
    }
    first = own;
    TRY(process_group_broadcast(group, &first, sizeof first / sizeof(int64_t), DTYPE_I64, 0, NULL));
    *fits = trace_clock_estimate(own.met, first.met, BARRIERS, out) == STATUS_OK;
    /* Containers of one kernel may still have clocks of their own: then 0 is no possible offset. */
    if (*fits && own.host != 0 && own.host == first.host && llabs(out->offset_ns) <= out->error_ns)
        out->offset_ns = out->error_ns = 0;
    return STATUS_OK;
}

status trace_clock_agree(process_group *group, int64_t began_ns, trace_clock *out)
{
    trace_clock clock = {0};
    bool fits = false;
    TRY(trace_clock_compare(group, &clock, &fits));
    if (!fits) /* as the estimate has said */
        return STATUS_INVALID;
    clock.zero_ns = began_ns + clock.offset_ns;
    TRY(process_group_all_reduce(group, &clock.zero_ns, 1, DTYPE_I64, REDUCE_MIN, NULL));
    *out = clock;
    return STATUS_OK;
}

enum {
    PIECE_BYTES = 4 << 20, /* in a value of the store, at most; whole events */
    PIECES_MAX = 64,       /* one rank's: a quarter of what the store holds */
    TAKE_OVER_MS = 300,    /* for rank 0 to begin to write, after a failure */
};

static const char BETWEEN[] = ",\n"; /* two events; nowhere else */

/* The value of "trace/<rank>" in the store. */
static json_t *describe_part(const char *about, size_t pieces)
{
    return json_pack("{s:o, s:I}", "about", json_text_parse(about, strlen(about), 0, NULL),
                     "pieces", (json_int_t)pieces);
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
    json_t *other = json_pack("{s:s, s:s, s:i, s:i, s:o}", "system", "mnist_ddp " MNIST_DDP_VERSION,
                              "run", endings[g->ending], "world_size", g->world_size, "generation",
                              g->attempt, "ranks", ranks);
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

/* Replaces the file by one without events: also a run that is killed leaves a trace that can be
 * opened, and a name that cannot be written to shows at the start. */
static status trace_gather_start(const trace_gathering *g)
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

/* Threads that one lane of overlapping spans is spread over. */
enum { ROWS = 16 };

typedef struct ordered {
    const trace_span *span;
    size_t index;
} ordered;

typedef struct part {
    FILE *file;
    int rank;
    const trace_clock *clock;
    const char *separator;
} part;

/* By beginning; of spans that begin together the outer one first: it ends later, or was at least
 * kept later. */
static int compare(const void *a_, const void *b_)
{
    const ordered *a = a_, *b = b_;
    if (a->span->begin_ns != b->span->begin_ns)
        return a->span->begin_ns < b->span->begin_ns ? -1 : 1;
    if (a->span->end_ns != b->span->end_ns)
        return a->span->end_ns > b->span->end_ns ? -1 : 1;
    return a->index > b->index ? -1 : 1;
}

/* What kind of event, and whose. */
static void write_head(part *p, const char *kind, int thread)
{
    fprintf(p->file, "%s{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d", p->separator, kind, p->rank, thread);
    p->separator = ",\n";
}

static void write_us(const part *p, const char *key, int64_t ns)
{
    int64_t size = ns < 0 ? -ns : ns;
    fprintf(p->file, ",\"%s\":%s%" PRId64 ".%03d", key, ns < 0 ? "-" : "", size / 1000,
            (int)(size % 1000));
}

static void write_key(part *p, const char **comma, const char *key)
{
    fprintf(p->file, "%s\"%s\":", *comma, key);
    *comma = ",";
}

/* Names are identifiers of ours and of parameters: nothing that JSON would have to escape. A label
 * "bucket 0: fc2.weight" gives "bucket 0" to the name and the rest to the arguments. */
static void write_span(part *p, int thread, const trace_span *s)
{
    const char *details = s->label != NULL ? strstr(s->label, ": ") : NULL;
    int which = details != NULL ? (int)(details - s->label) : 0;
    write_head(p, "X", thread);
    write_us(p, "ts", s->begin_ns + p->clock->offset_ns - p->clock->zero_ns);
    write_us(p, "dur", s->end_ns - s->begin_ns);
    fprintf(p->file, ",\"name\":\"%s%s%s%s%.*s\",\"args\":{", s->of != NULL ? s->of : "",
            s->of != NULL ? " " : "", s->name, which > 0 ? " " : "", which,
            which > 0 ? s->label : "");
    const char *comma = "";
    if (s->number_name != NULL) {
        write_key(p, &comma, s->number_name);
        fprintf(p->file, "%" PRId64, s->number);
    }
    if (s->size_bytes >= 0) {
        write_key(p, &comma, "bytes");
        fprintf(p->file, "%" PRId64, s->size_bytes);
    }
    if (which > 0) {
        write_key(p, &comma, "parameters");
        fprintf(p->file, "\"%s\"", details + 2);
    }
    if (s->unfinished) {
        write_key(p, &comma, "unfinished");
        fprintf(p->file, "true");
    }
    fprintf(p->file, "}}");
}

static void write_thread_name(part *p, int thread, const char *name, int row)
{
    write_head(p, "M", thread);
    fprintf(p->file, ",\"name\":\"thread_name\",\"args\":{\"name\":\"%s", name);
    if (row > 0)
        fprintf(p->file, " %d", row + 1);
    fprintf(p->file, "\"}}");
    write_head(p, "M", thread);
    fprintf(p->file, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}}", thread);
}

/* Overlapping spans go to the first row that is free again. */
static void write_rows(part *p, int thread, const char *name, const ordered *spans, size_t n)
{
    int64_t free_ns[ROWS];
    int rows = 0;
    for (size_t i = 0; i < n; i++) {
        const trace_span *s = spans[i].span;
        int row = 0;
        while (row < rows && free_ns[row] > s->begin_ns)
            row++;
        if (row == ROWS)
            continue; /* more at once than there are rows: rather left out than misshapen */
        if (row == rows)
            write_thread_name(p, thread + row, name, rows++);
        free_ns[row] = s->end_ns;
        write_span(p, thread + row, s);
    }
}

static status write_lane(part *p, trace *t, int lane, size_t *dropped)
{
    size_t dropped_here = 0, n = trace_spans(t, lane, &dropped_here);
    trace_lane_kind kind;
    const char *name = trace_lane_name(t, lane, &kind);
    int thread = 1 + lane * ROWS;
    ordered *spans = NULL;
    *dropped += dropped_here;
    TRY(memory_alloc(sizeof *spans * n, (void **)&spans));
    for (size_t i = 0; i < n; i++)
        spans[i] = (ordered){trace_span_at(t, lane, i), i};
    qsort(spans, n, sizeof *spans, compare);
    if (kind == TRACE_OVERLAPPING) {
        write_rows(p, thread, name, spans, n);
    } else {
        write_thread_name(p, thread, name, 0);
        for (size_t i = 0; i < n; i++)
            write_span(p, thread, spans[i].span);
    }
    free(spans);
    return STATUS_OK;
}

/* Writes the events of all lanes of `t`, JSON objects with commas between them, at least one: a
 * process per rank, a thread per lane, and as many further ones as overlapping spans need. Times
 * are microseconds from clock->zero_ns, spans of a thread in the order of their beginnings, outer
 * ones first. *dropped: spans that the lanes had no room for. */
static status trace_part_write(FILE *file, int rank, const char *host, const trace_clock *clock,
                               trace *t, size_t *dropped)
{
    part p = {.file = file, .rank = rank, .clock = clock, .separator = ""};
    *dropped = 0;
    write_head(&p, "M", 0);
    fprintf(file, ",\"name\":\"process_name\",\"args\":{\"name\":\"rank %d %s\"}}", rank, host);
    write_head(&p, "M", 0);
    fprintf(file, ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}}", rank);
    for (int lane = 0; lane < trace_lanes(t); lane++)
        TRY(write_lane(&p, t, lane, dropped));
    return STATUS_OK;
}

enum { FAILED_WAIT_MS = 1000, HOST_BYTES = 64 };

status run_trace_open(int64_t steps, run_trace *out)
{
    run_trace t = {.steps = steps, .steps_left = steps, .clock.zero_ns = clock_now_ns()};
    TRY(trace_create(&t.spans));
    status st = trace_lane_open(t.spans, "main", TRACE_NESTED, &t.lane);
    if (st == STATUS_OK)
        st = trace_lane_open(t.spans, "communication", TRACE_OVERLAPPING, &t.group);
    if (st != STATUS_OK) {
        trace_destroy(t.spans);
        return st;
    }
    trace_begin(t.lane, NULL, "setup");
    *out = t;
    return STATUS_OK;
}

void run_trace_close(run_trace *t)
{
    trace_destroy(t->spans);
    *t = (run_trace){0};
}

status run_trace_start(run_trace *t, process_group *group, const trace_gathering *how)
{
    if (t->spans == NULL)
        return STATUS_OK;
    t->gathering = *how;
    if (how->rank == 0)
        TRY(trace_gather_start(how));
    trace_pause(t->spans, true); /* its own collectives are not traced */
    TRY(trace_clock_agree(group, t->clock.zero_ns, &t->clock));
    trace_pause(t->spans, false);
    return STATUS_OK;
}

void run_trace_begin_step(run_trace *t, int64_t step)
{
    if (t->spans == NULL)
        return;
    trace_pause(t->spans, t->steps_left == 0);
    t->steps_left -= t->steps_left > 0;
    trace_begin_numbered(t->lane, "step", step);
}

void run_trace_end_step(run_trace *t)
{
    trace_end(t->lane);
    trace_pause(t->spans, false);
}

/* This host's name, of the bytes that need no escaping anywhere. */
static void name_host(char out[HOST_BYTES])
{
    if (gethostname(out, HOST_BYTES - 1) != 0)
        out[0] = '\0';
    out[HOST_BYTES - 1] = '\0';
    for (char *c = out; *c != '\0'; c++)
        if (*c <= ' ' || *c > '~' || *c == '"' || *c == '\\')
            *c = '_';
}

static status describe(const run_trace *t, const char *host, size_t dropped, char **out)
{
    json_t *about =
        json_pack("{s:i, s:s, s:I, s:f, s:f, s:I, s:I}", "rank", t->gathering.rank, "host", host,
                  "pid", (json_int_t)getpid(), "clock_offset_us", (double)t->clock.offset_ns / 1e3,
                  "clock_error_us", (double)t->clock.error_ns / 1e3, "steps",
                  (json_int_t)(t->steps - t->steps_left), "spans_left_out", (json_int_t)dropped);
    status st = json_text_print(about, JSON_COMPACT, out);
    json_decref(about);
    return st;
}

static status write_out(const run_trace *t, const trace_gathering *how, int *parts)
{
    char host[HOST_BYTES], *events = NULL, *about = NULL;
    size_t dropped = 0;
    text_stream body;
    TRY(text_stream_open(&body));
    name_host(host);
    status st = trace_part_write(body.file, how->rank, host, &t->clock, t->spans, &dropped);
    status whole = text_stream_close(&body, &events, NULL);
    if (st == STATUS_OK)
        st = whole;
    if (st == STATUS_OK)
        st = describe(t, host, dropped, &about);
    if (st == STATUS_OK)
        st = trace_gather(how, about, events, parts);
    free(about);
    free(events);
    return st;
}

status run_trace_write(run_trace *t, stream_trace *stream, trace_ending ending, int *parts)
{
    *parts = 0;
    if (t->spans == NULL)
        return STATUS_OK;
    trace_gathering how = t->gathering;
    how.ending = ending;
    if (ending == TRACE_FAILED) {
        how.wait_ms = FAILED_WAIT_MS;
        signal(SIGTERM, SIG_IGN); /* a launcher that has seen a rank fail ends the others soon; this
                                     one is about to end anyway */
    } else if (stream_trace_settle(stream) != STATUS_OK) {
        LOG_W("the trace is without the last steps of the device: %s", status_text());
    }
    trace_break_off(t->lane);
    return write_out(t, &how, parts);
}
