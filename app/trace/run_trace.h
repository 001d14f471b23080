/* The trace of a run: --trace FILE. */
#ifndef MNIST_DDP_APP_TRACE_RUN_TRACE_H
#define MNIST_DDP_APP_TRACE_RUN_TRACE_H

#include "app/trace/trace_clock.h"
#include "app/trace/trace_gather.h"
#include "base/trace.h"

#include <stdint.h>

struct job; /* app/train/job.h */

/* All zero: no trace is wanted; then all calls do nothing. */
typedef struct run_trace {
    trace *spans;
    trace_lane *lane;  /* of the main thread */
    trace_lane *group; /* for the process group */
    trace_clock clock;
    int64_t steps_left; /* to be kept */
} run_trace;

/* Opens the lanes, if a trace is wanted: before device and process group, which get them. */
status run_trace_open(struct job *j);
void run_trace_close(run_trace *t);

/* With the process group open: the ranks agree on a clock, and rank 0 makes the file.
 * STATUS_IO where it cannot be written. Collective. */
status run_trace_start(struct job *j);

/* Around optimizer step `step`, from 1. Past --trace-steps nothing is kept in between. */
void run_trace_begin_step(run_trace *t, int64_t step);
void run_trace_end_step(run_trace *t);

/* Writes the file, with all ranks in it; all ranks call it once at their end. What is open then
 * shows as unfinished. *parts: the ranks in the file; 0: another rank writes it. */
status run_trace_write(struct job *j, trace_ending ending, int *parts);

#endif
