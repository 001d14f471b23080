/* One time for all ranks of a trace: that of rank 0's host. */
#ifndef MNIST_DDP_APP_TRACE_TRACE_CLOCK_H
#define MNIST_DDP_APP_TRACE_TRACE_CLOCK_H

#include "dist/process_group/process_group.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct trace_clock {
    int64_t offset_ns; /* this rank's clock + offset is rank 0's */
    int64_t error_ns;  /* that the offset is off at most; 0: both read the same clock */
    int64_t zero_ns;   /* on rank 0's clock: where the trace begins */
} trace_clock;

/* When a rank entered a barrier and when it left it, by its own clock. */
typedef struct trace_barrier {
    int64_t entered_ns, left_ns;
} trace_barrier;

/* The offset from n barriers of a rank and rank 0: each clock was read there between bounds that
 * the other one has read. STATUS_INVALID if no offset fits: a clock has jumped. */
status trace_clock_estimate(const trace_barrier *own, const trace_barrier *first, int n,
                            trace_clock *out);

/* Runs a few barriers, and sets offset and error; *fits: false if there are none. Ranks of one host
 * share its clock, and so have offset and error 0. All ranks call it. */
status trace_clock_compare(process_group *group, trace_clock *out, bool *fits);

/* The same, and the trace's zero; `began_ns`: the earliest that this rank has to tell.
 * STATUS_INVALID if no offset fits. */
status trace_clock_agree(process_group *group, int64_t began_ns, trace_clock *out);

#endif
