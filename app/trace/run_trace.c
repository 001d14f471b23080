#include "app/trace/run_trace.h"

#include "app/trace/trace_part.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/text_stream.h"

#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

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
    text_stream part;
    TRY(text_stream_open(&part));
    name_host(host);
    status st = trace_part_write(part.file, how->rank, host, &t->clock, t->spans, &dropped);
    status whole = text_stream_close(&part, &events, NULL);
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
