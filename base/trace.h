/* What threads did when: spans of time in lanes, for a viewer of traces.
 *
 * A lane is written by one thread at a time, without a lock: spans that it begins and ends, nested,
 * and spans that it adds when they are over. Without a trace a lane is NULL: all calls accept that
 * and do nothing then. Names are not copied: they are literals, or outlive the trace.
 */
#ifndef MNIST_DDP_BASE_TRACE_H
#define MNIST_DDP_BASE_TRACE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trace trace;
typedef struct trace_lane trace_lane;

/* On the clock of base/clock.h. */
typedef struct trace_span {
    const char *of;          /* "conv1"; NULL: nothing in particular */
    const char *name;        /* "forward" */
    const char *number_name; /* "step"; NULL: no number */
    int64_t number;
    int64_t size_bytes; /* that it moves; -1: it moves nothing */
    const char *label;  /* which ones: "bucket 0: fc2.weight, fc2.bias"; NULL: not known */
    int64_t begin_ns, end_ns;
    bool unfinished; /* it had not ended at end_ns */
} trace_span;

typedef enum trace_lane_kind {
    TRACE_NESTED,
    TRACE_OVERLAPPING, /* spans may overlap, as those of work that runs beside each other */
} trace_lane_kind;

/* Lanes of a trace, and spans that a lane keeps: further ones are only counted. */
enum { TRACE_LANES_MAX = 1024, TRACE_SPANS_MAX = 1 << 18, TRACE_LANE_NAME_BYTES = 48 };

status trace_create(trace **out);
void trace_destroy(trace *t); /* accepts NULL; no thread uses its lanes any more */

/* A lane of `t`, which owns it; NULL for a NULL trace. The name is copied, cut if it is too
 * long. May be called from any thread. STATUS_INVALID past TRACE_LANES_MAX. */
status trace_lane_open(trace *t, const char *name, trace_lane_kind kind, trace_lane **out);

const char *trace_lane_text(const trace_lane *lane); /* its name */

/* No lane keeps a span that begins while it is paused. From any thread. */
void trace_pause(trace *t, bool paused);
bool trace_is_paused(const trace *t);

/* Begins and ends a span inside the one that is open. */
void trace_begin(trace_lane *lane, const char *of, const char *name);
void trace_end(trace_lane *lane);

/* As trace_begin, and the span says which one it is: "step" 12. */
void trace_begin_numbered(trace_lane *lane, const char *name, int64_t number);

/* A number of the innermost open span, which has none yet. */
void trace_number(trace_lane *lane, const char *name, int64_t number);

/* The thread enters another phase: ends the one that trace_switch began before, if it is open, and
 * all inside it, and begins this one; NULL: none. */
void trace_switch(trace_lane *lane, const char *name);

/* Adds a span that is over. One that is unfinished is kept also while paused. */
void trace_add(trace_lane *lane, const trace_span *span);

/* What the lane's thread does now: its innermost open span's `of` and `name`; false: nothing. Only
 * for that thread. */
bool trace_doing(const trace_lane *lane, const char **of, const char **name);

/* Ends all open spans as unfinished, kept also while paused: for a run that breaks off. Only for
 * the lane's thread. */
void trace_break_off(trace_lane *lane);

/* What the lanes hold, in the order of their opening; lane < trace_lanes(). Spans in the order of
 * their ends. May be called while threads go on: then it is what they had ended. */
int trace_lanes(trace *t);
const char *trace_lane_name(trace *t, int lane, trace_lane_kind *kind);
size_t trace_spans(trace *t, int lane, size_t *dropped);
const trace_span *trace_span_at(trace *t, int lane, size_t i);

#ifdef __cplusplus
}
#endif
#endif
