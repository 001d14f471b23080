#include "app/trace/run_trace.h"

#include "app/trace/trace_clock.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/trace.h"

#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    json_t *about = json_object();
    json_object_set_new(about, "rank", json_integer(t->gathering.rank));
    json_object_set_new(about, "host", json_string(host));
    json_object_set_new(about, "pid", json_integer((json_int_t)getpid()));
    json_object_set_new(about, "clock_offset_us", json_real((double)t->clock.offset_ns / 1e3));
    json_object_set_new(about, "clock_error_us", json_real((double)t->clock.error_ns / 1e3));
    json_object_set_new(about, "steps", json_integer(t->steps - t->steps_left));
    json_object_set_new(about, "spans_left_out", json_integer((json_int_t)dropped));
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
