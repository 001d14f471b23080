/* The trace of a run: --trace FILE. One time for all ranks, that of rank 0's host, and how the
 * ranks' parts become one file. */
#ifndef MNIST_DDP_APP_TRACE_RUN_TRACE_H
#define MNIST_DDP_APP_TRACE_RUN_TRACE_H

#include "base/trace.h"
#include "dist/process_group/process_group.h"
#include "dist/store/store.h"
#include "kernels/stream_trace.h"

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

/* The same, and the trace's zero; `began_ns`: the earliest that this rank has recorded.
 * STATUS_INVALID if no offset fits. */
status trace_clock_agree(process_group *group, int64_t began_ns, trace_clock *out);

/* How the run came to its end. */
typedef enum trace_ending {
    TRACE_DONE,
    TRACE_STOPPED, /* all ranks, at a step that they agreed on */
    TRACE_FAILED,  /* some ranks may be gone */
} trace_ending;

typedef struct trace_gathering {
    const char *path; /* the file's */
    store *shared;    /* NULL: there are no other ranks */
    int rank, world_size, attempt;
    trace_ending ending;
    int64_t wait_ms; /* for the others' parts */
} trace_gathering;

/* `about`: a JSON object, `events`: JSON objects with commas between them; of this rank. Every rank
 * calls it. Rank 0 gets the others' parts through the store and replaces the file by all of them.
 * After a failure it takes what comes within wait_ms; and the first rank that finds rank 0 gone
 * does it in its place, or, if rank 0 has taken the store with it, leaves its own part beside
 * the file, as FILE.rank<r>.
 * *parts: the ranks in the file that this rank has written; 0: it has written none. */
status trace_gather(const trace_gathering *g, const char *about, const char *events, int *parts);

/* All zero: no trace is wanted; then all calls do nothing. */
typedef struct run_trace {
    trace *spans;
    trace_lane *lane;  /* the main thread's */
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
