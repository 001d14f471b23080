#include "app/trace/run_trace.h"

#include "app/trace/trace_part.h"
#include "app/train/job.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/text_stream.h"
#include "kernels/stream_trace.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FAILED_WAIT_MS = 1000, HOST_BYTES = 64 };

status run_trace_open(job *j)
{
    run_trace *t = &j->trace;
    if (j->opts->trace == NULL)
        return STATUS_OK;
    t->steps_left = j->opts->trace_steps;
    t->clock.zero_ns = clock_now_ns();
    TRY(trace_create(&t->spans));
    TRY(trace_lane_open(t->spans, "main", TRACE_NESTED, &t->lane));
    TRY(trace_lane_open(t->spans, "communication", TRACE_OVERLAPPING, &t->group));
    trace_begin(t->lane, NULL, "setup");
    return STATUS_OK;
}

void run_trace_close(run_trace *t)
{
    trace_destroy(t->spans);
    *t = (run_trace){0};
}

static trace_gathering gathering_of(const job *j, trace_ending ending)
{
    return (trace_gathering){
        .path = j->opts->trace,
        .shared = j->rdzv != NULL && j->place.world_size > 1 ? rendezvous_store(j->rdzv) : NULL,
        .rank = j->place.rank,
        .world_size = j->place.world_size,
        .generation = j->place.restart_count,
        .ending = ending,
        .wait_ms = ending == TRACE_FAILED ? FAILED_WAIT_MS : j->opts->timeout * 1000,
    };
}

status run_trace_start(job *j)
{
    if (j->trace.spans == NULL)
        return STATUS_OK;
    trace_gathering g = gathering_of(j, TRACE_FAILED);
    if (j->place.rank == 0)
        TRY(trace_gather_start(&g));
    trace_pause(j->trace.spans, true); /* the trace is not about itself */
    TRY(trace_clock_agree(j->group, j->trace.clock.zero_ns, &j->trace.clock));
    trace_pause(j->trace.spans, false);
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

static status describe(const job *j, const char *host, size_t dropped, char **out)
{
    const trace_clock *clock = &j->trace.clock;
    json_t *about = json_object();
    json_object_set_new(about, "rank", json_integer(j->place.rank));
    json_object_set_new(about, "host", json_string(host));
    json_object_set_new(about, "pid", json_integer((json_int_t)getpid()));
    json_object_set_new(about, "clock_offset_us", json_real((double)clock->offset_ns / 1e3));
    json_object_set_new(about, "clock_error_us", json_real((double)clock->error_ns / 1e3));
    json_object_set_new(about, "steps", json_integer(j->opts->trace_steps - j->trace.steps_left));
    json_object_set_new(about, "spans_left_out", json_integer((json_int_t)dropped));
    status st = json_text_print(about, JSON_COMPACT, out);
    json_decref(about);
    return st;
}

static status write_out(job *j, trace_ending ending, int *parts)
{
    char host[HOST_BYTES], *events = NULL, *about = NULL;
    size_t dropped = 0;
    text_stream part;
    TRY(text_stream_open(&part));
    name_host(host);
    status st =
        trace_part_write(part.file, j->place.rank, host, &j->trace.clock, j->trace.spans, &dropped);
    status whole = text_stream_close(&part, &events, NULL);
    if (st == STATUS_OK)
        st = whole;
    if (st == STATUS_OK)
        st = describe(j, host, dropped, &about);
    trace_gathering g = gathering_of(j, ending);
    if (st == STATUS_OK)
        st = trace_gather(&g, about, events, parts);
    free(about);
    free(events);
    return st;
}

status run_trace_write(job *j, trace_ending ending, int *parts)
{
    *parts = 0;
    if (j->trace.spans == NULL)
        return STATUS_OK;
    /* A launcher that has seen a rank fail ends the others soon: this one is about to end anyway.
     */
    if (ending == TRACE_FAILED)
        signal(SIGTERM, SIG_IGN);
    else if (stream_trace_settle(j->dev->stream_trace) != STATUS_OK)
        LOG_W("the trace is without the last steps of the device: %s", status_text());
    trace_break_off(j->trace.lane);
    return write_out(j, ending, parts);
}
