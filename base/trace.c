/* Spans lie in blocks that are made as they are needed and never move. A span is written before the
 * count that covers it is published, so readers need no lock. */
#include "base/trace.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    BLOCK_SPANS = 2048,
    BLOCKS_MAX = TRACE_SPANS_MAX / BLOCK_SPANS,
    DEPTH_MAX = 16,
};

struct trace_lane {
    trace *owner;
    char name[TRACE_LANE_NAME_BYTES];
    trace_lane_kind kind;
    trace_span open[DEPTH_MAX]; /* the outermost first */
    int depth;                  /* so many spans are open; those past DEPTH_MAX are not kept */
    int phase_depth;            /* where the open phase is in `open`, from 1; 0: there is none */
    trace_span *blocks[BLOCKS_MAX];
    atomic_size_t count, dropped;
};

struct trace {
    _Atomic int64_t paused_ns; /* since when; INT64_MAX: it is not */
    pthread_mutex_t lock;      /* for who opens a lane */
    trace_lane *lanes[TRACE_LANES_MAX];
    atomic_int n_lanes; /* they are there before they are counted */
};

status trace_create(trace **out)
{
    trace *t = calloc(1, sizeof *t);
    if (t == NULL)
        return FAIL(STATUS_NO_MEMORY, "a trace");
    pthread_mutex_init(&t->lock, NULL);
    atomic_store(&t->paused_ns, INT64_MAX);
    *out = t;
    return STATUS_OK;
}

void trace_destroy(trace *t)
{
    if (t == NULL)
        return;
    for (int i = 0; i < t->n_lanes; i++) {
        for (size_t b = 0; b < BLOCKS_MAX; b++)
            free(t->lanes[i]->blocks[b]);
        free(t->lanes[i]);
    }
    pthread_mutex_destroy(&t->lock);
    free(t);
}

status trace_lane_open(trace *t, const char *name, trace_lane_kind kind, trace_lane **out)
{
    if (t == NULL) {
        *out = NULL;
        return STATUS_OK;
    }
    trace_lane *lane = calloc(1, sizeof *lane);
    if (lane == NULL)
        return FAIL(STATUS_NO_MEMORY, "a lane of the trace");
    lane->owner = t;
    lane->kind = kind;
    snprintf(lane->name, sizeof lane->name, "%s", name);
    pthread_mutex_lock(&t->lock);
    int n = trace_lanes(t);
    bool fits = n < TRACE_LANES_MAX;
    if (fits) {
        t->lanes[n] = lane;
        atomic_store_explicit(&t->n_lanes, n + 1, memory_order_release);
    }
    pthread_mutex_unlock(&t->lock);
    if (!fits) {
        free(lane);
        return FAIL(STATUS_INVALID, "a trace of more than %d threads", (int)TRACE_LANES_MAX);
    }
    *out = lane;
    return STATUS_OK;
}

const char *trace_lane_text(const trace_lane *lane)
{
    return lane->name;
}

void trace_pause(trace *t, bool paused)
{
    if (t != NULL)
        atomic_store_explicit(&t->paused_ns, paused ? clock_now_ns() : INT64_MAX,
                              memory_order_relaxed);
}

bool trace_is_paused(const trace *t)
{
    return atomic_load_explicit(&t->paused_ns, memory_order_relaxed) != INT64_MAX;
}

static void keep(trace_lane *lane, const trace_span *span)
{
    size_t count = atomic_load_explicit(&lane->count, memory_order_relaxed);
    size_t block = count / BLOCK_SPANS;
    if (count < TRACE_SPANS_MAX && lane->blocks[block] == NULL)
        lane->blocks[block] = malloc(sizeof *span * BLOCK_SPANS);
    if (count == TRACE_SPANS_MAX || lane->blocks[block] == NULL) {
        atomic_fetch_add_explicit(&lane->dropped, 1, memory_order_relaxed);
        return;
    }
    lane->blocks[block][count % BLOCK_SPANS] = *span;
    atomic_store_explicit(&lane->count, count + 1, memory_order_release);
}

static bool began_in_pause(const trace_lane *lane, const trace_span *span)
{
    int64_t paused_ns = atomic_load_explicit(&lane->owner->paused_ns, memory_order_relaxed);
    return span->begin_ns >= paused_ns;
}

static void push(trace_lane *lane, const char *of, const char *name, int64_t now_ns)
{
    int at = lane->depth++;
    if (at < DEPTH_MAX)
        lane->open[at] = (trace_span){.of = of, .name = name, .size_bytes = -1, .begin_ns = now_ns};
}

void trace_begin(trace_lane *lane, const char *of, const char *name)
{
    if (lane != NULL)
        push(lane, of, name, clock_now_ns());
}

void trace_begin_numbered(trace_lane *lane, const char *name, int64_t number)
{
    trace_begin(lane, NULL, name);
    trace_number(lane, name, number);
}

void trace_number(trace_lane *lane, const char *name, int64_t number)
{
    if (lane == NULL || lane->depth < 1 || lane->depth > DEPTH_MAX)
        return;
    lane->open[lane->depth - 1].number_name = name;
    lane->open[lane->depth - 1].number = number;
}

static void pop(trace_lane *lane, int64_t now_ns)
{
    ASSERT(lane->depth > 0);
    int at = --lane->depth;
    if (lane->phase_depth > lane->depth)
        lane->phase_depth = 0;
    if (at >= DEPTH_MAX || began_in_pause(lane, &lane->open[at]))
        return;
    lane->open[at].end_ns = now_ns;
    keep(lane, &lane->open[at]);
}

void trace_end(trace_lane *lane)
{
    if (lane != NULL)
        pop(lane, clock_now_ns());
}

void trace_switch(trace_lane *lane, const char *name)
{
    if (lane == NULL)
        return;
    int64_t now_ns = clock_now_ns(); /* no moment is between two phases */
    while (lane->phase_depth > 0)
        pop(lane, now_ns);
    if (name == NULL)
        return;
    push(lane, NULL, name, now_ns);
    lane->phase_depth = lane->depth;
}

void trace_add(trace_lane *lane, const trace_span *span)
{
    if (lane != NULL && (span->unfinished || !began_in_pause(lane, span)))
        keep(lane, span);
}

bool trace_doing(const trace_lane *lane, const char **of, const char **name)
{
    if (lane == NULL || lane->depth == 0)
        return false;
    int at = lane->depth <= DEPTH_MAX ? lane->depth - 1 : DEPTH_MAX - 1;
    *of = lane->open[at].of;
    *name = lane->open[at].name;
    return true;
}

void trace_break_off(trace_lane *lane)
{
    if (lane == NULL)
        return;
    int64_t now_ns = clock_now_ns();
    while (lane->depth > 0)
        if (--lane->depth < DEPTH_MAX) {
            lane->open[lane->depth].unfinished = true;
            lane->open[lane->depth].end_ns = now_ns;
            keep(lane, &lane->open[lane->depth]);
        }
    lane->phase_depth = 0;
}

int trace_lanes(trace *t)
{
    return atomic_load_explicit(&t->n_lanes, memory_order_acquire);
}

static trace_lane *lane_at(trace *t, int lane)
{
    ASSERT(lane >= 0 && lane < trace_lanes(t));
    return t->lanes[lane];
}

const char *trace_lane_name(trace *t, int lane, trace_lane_kind *kind)
{
    const trace_lane *at = lane_at(t, lane);
    *kind = at->kind;
    return at->name;
}

size_t trace_spans(trace *t, int lane, size_t *dropped)
{
    trace_lane *at = lane_at(t, lane);
    *dropped = atomic_load_explicit(&at->dropped, memory_order_relaxed);
    return atomic_load_explicit(&at->count, memory_order_acquire);
}

const trace_span *trace_span_at(trace *t, int lane, size_t i)
{
    const trace_lane *at = lane_at(t, lane);
    ASSERT(i < atomic_load_explicit(&at->count, memory_order_acquire));
    return &at->blocks[i / BLOCK_SPANS][i % BLOCK_SPANS];
}
