/* The trace of a run: --trace FILE. */
#ifndef MNIST_DDP_APP_TRACE_RUN_TRACE_H
#define MNIST_DDP_APP_TRACE_RUN_TRACE_H

#include "app/trace/trace_clock.h"
#include "app/trace/trace_gather.h"
#include "base/trace.h"
#include "kernels/stream_trace.h"

#include <stdint.h>

/* All zero: no trace is wanted; then all calls do nothing. */
typedef struct run_trace {
    trace *spans;
    trace_lane *lane;  /* of the main thread */
    trace_lane *group; /* for the process group */
    trace_clock clock;
    int64_t steps, steps_left; /* to be kept */
    trace_gathering gathering; /* from run_trace_start on */
} run_trace;

/* Opens the lanes, for a trace of the first `steps` steps: before device and process group, which
 * get them. run_trace_close accepts a zeroed one. */
status run_trace_open(int64_t steps, run_trace *out);
void run_trace_close(run_trace *t);

/* With the process group open: the ranks agree on a clock, and rank 0 makes the file. `how`: all of
 * it but the ending; wait_ms is of a run that ends well. STATUS_IO if the file cannot be written.
 * Collective. */
status run_trace_start(run_trace *t, process_group *group, const trace_gathering *how);

/* Around optimizer step `step`, from 1. Past --trace-steps nothing is kept in between. */
void run_trace_begin_step(run_trace *t, int64_t step);
void run_trace_end_step(run_trace *t);

/* Writes the file, with all ranks in it; all ranks call it once at their end. What is open then
 * shows as unfinished. `stream`: of the device, NULL if it has none; it is waited for unless the
 * run failed. *parts: the ranks in the file; 0: another rank writes it. */
status run_trace_write(run_trace *t, stream_trace *stream, trace_ending ending, int *parts);

#endif
