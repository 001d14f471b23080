/* A timing event is enqueued at the beginning and at the end of a span. Two adjoining phases share
 * one. When few timers are left, between two outermost spans, the host waits for the last one and
 * reads them all. Times are relative to an anchor, a timer whose host time is known: first one on
 * an idle stream, then the last one that was read. */
#include "kernels/stream_trace.h"

#include "base/clock.h"
#include "base/memory.h"
#include "kernels/ops.h"

#include <stdlib.h>

enum {
    TIMERS = 1024,
    RESERVE = 256, /* for the spans inside an outermost one; beyond them spans are left out, */
    LAST = 1,      /* except for the timer that ends a phase */
    DEPTH_MAX = 8,
    NONE = -1,
};

/* A span by the indices of its timers. */
typedef struct mark {
    const char *of, *name; /* name NULL: not in the lane */
    int64_t *total_ns;     /* gets its time; NULL: nothing does */
    int begin, end;        /* end NONE: still open, or left out */
} mark;

struct stream_trace {
    device *dev;
    trace *owner; /* NULL: only phases are timed */
    trace_lane *lane;
    bool held;
    status broken;   /* not STATUS_OK: no more timers are enqueued, */
    status_kept why; /* for this reason */
    device_event *anchor;
    int64_t anchor_ns;
    device_event *timers[TIMERS]; /* made as they are needed; n_timers of them are enqueued */
    int n_timers;
    mark marks[TIMERS];
    int n_marks;
    int open[DEPTH_MAX]; /* marks, the outermost first; NONE: not kept */
    int depth, phase_depth;
};

static const accelerator_ops *ops_of(const stream_trace *s)
{
    return s->dev->ops->accelerator;
}

status stream_trace_open(device *dev, trace *t, const char *name, stream_trace **out)
{
    stream_trace *s = NULL;
    TRY(memory_alloc(sizeof *s, (void **)&s));
    s->dev = dev;
    s->owner = t;
    status st = t != NULL ? trace_lane_open(t, name, TRACE_NESTED, &s->lane) : STATUS_OK;
    if (st == STATUS_OK)
        st = ops_of(s)->timer_create(dev, &s->anchor);
    if (st == STATUS_OK)
        st = ops_of(s)->event_record(dev, s->anchor);
    if (st == STATUS_OK)
        st = ops_of(s)->event_wait(dev, s->anchor);
    s->anchor_ns = clock_now_ns();
    if (st != STATUS_OK) {
        stream_trace_close(s);
        return st;
    }
    *out = s;
    return STATUS_OK;
}

void stream_trace_close(stream_trace *s)
{
    if (s == NULL)
        return;
    for (int i = 0; i < TIMERS; i++)
        ops_of(s)->event_destroy(s->timers[i]);
    ops_of(s)->event_destroy(s->anchor);
    free(s);
}

static bool keeps_spans(const stream_trace *s)
{
    return s->owner != NULL && !trace_is_paused(s->owner);
}

static void note_failure(stream_trace *s, status st)
{
    if (st == STATUS_OK)
        return;
    s->broken = st;
    status_keep(&s->why);
}

/* Enqueues one of the first `limit` timers; NONE if there is none now. */
static int enqueue(stream_trace *s, int limit)
{
    if (s->held || s->broken != STATUS_OK || s->n_timers >= limit)
        return NONE;
    device_event **timer = &s->timers[s->n_timers];
    status st = *timer == NULL ? ops_of(s)->timer_create(s->dev, timer) : STATUS_OK;
    if (st == STATUS_OK)
        st = ops_of(s)->event_record(s->dev, *timer);
    note_failure(s, st);
    return st == STATUS_OK ? s->n_timers++ : NONE;
}

/* For a span inside a phase. */
static int enqueue_for_span(stream_trace *s)
{
    return keeps_spans(s) ? enqueue(s, TIMERS - LAST) : NONE;
}

static void push(stream_trace *s, const mark *m)
{
    int at = s->depth++;
    if (at >= DEPTH_MAX)
        return;
    s->open[at] = NONE;
    if (m->begin == NONE || s->n_marks == TIMERS)
        return;
    s->open[at] = s->n_marks;
    s->marks[s->n_marks++] = *m;
}

static void pop(stream_trace *s, int timer)
{
    int at = --s->depth;
    if (at < DEPTH_MAX && s->open[at] != NONE)
        s->marks[s->open[at]].end = timer;
    if (s->phase_depth > s->depth)
        s->phase_depth = 0;
}

static void make_room(stream_trace *s)
{
    if (s->depth == 0 && s->n_timers > TIMERS - RESERVE && !s->held)
        note_failure(s, stream_trace_settle(s));
}

void stream_trace_begin(stream_trace *s, const char *of, const char *name)
{
    make_room(s);
    push(s, &(mark){.of = of, .name = name, .begin = enqueue_for_span(s), .end = NONE});
}

void stream_trace_end(stream_trace *s)
{
    ASSERT(s->depth > 0);
    pop(s, enqueue_for_span(s));
}

/* Whether the phase that is open has a beginning, and so needs an end. */
static bool phase_is_timed(const stream_trace *s)
{
    return s->phase_depth > 0 && s->phase_depth <= DEPTH_MAX && s->open[s->phase_depth - 1] != NONE;
}

status stream_trace_switch(stream_trace *s, const char *name, int64_t *total_ns)
{
    mark next = {.name = keeps_spans(s) ? name : NULL, .total_ns = total_ns, .end = NONE};
    next.begin = phase_is_timed(s) ? enqueue(s, TIMERS) : NONE;
    while (s->phase_depth > 0)
        pop(s, next.begin);
    if (next.name != NULL || total_ns != NULL) {
        make_room(s);
        if (next.begin == NONE || s->n_timers == 0) /* no timer yet, or it has been read */
            next.begin = enqueue(s, TIMERS);
        push(s, &next);
        s->phase_depth = s->depth;
    }
    if (total_ns == NULL || s->broken == STATUS_OK)
        return STATUS_OK;
    status_restore(&s->why);
    return s->broken;
}

void stream_trace_hold(stream_trace *s, bool held)
{
    if (s != NULL)
        s->held = held;
}

static status read_time(stream_trace *s, int timer, int64_t *ns)
{
    int64_t elapsed_ns = 0;
    TRY(ops_of(s)->event_elapsed(s->dev, s->anchor, s->timers[timer], &elapsed_ns));
    *ns = s->anchor_ns + elapsed_ns;
    return STATUS_OK;
}

static status read_marks(stream_trace *s)
{
    for (int i = 0; i < s->n_marks; i++) {
        const mark *m = &s->marks[i];
        trace_span span = {.of = m->of, .name = m->name, .size_bytes = -1};
        if (m->end == NONE)
            continue;
        TRY(read_time(s, m->begin, &span.begin_ns));
        TRY(read_time(s, m->end, &span.end_ns));
        if (m->name != NULL)
            trace_add(s->lane, &span);
        if (m->total_ns != NULL)
            *m->total_ns += span.end_ns - span.begin_ns;
    }
    return STATUS_OK;
}

status stream_trace_settle(stream_trace *s)
{
    if (s == NULL)
        return STATUS_OK;
    if (s->broken != STATUS_OK) {
        status_restore(&s->why);
        return s->broken;
    }
    if (s->n_timers == 0)
        return STATUS_OK;
    int last = s->n_timers - 1;
    int64_t last_ns = 0;
    TRY(ops_of(s)->event_wait(s->dev, s->timers[last]));
    TRY(read_marks(s));
    TRY(read_time(s, last, &last_ns));
    device_event *anchor = s->timers[last];
    s->timers[last] = s->anchor;
    s->anchor = anchor;
    s->anchor_ns = last_ns;
    s->n_timers = s->n_marks = 0;
    for (int i = 0; i < s->depth && i < DEPTH_MAX; i++)
        s->open[i] = NONE;
    return STATUS_OK;
}
