/* A trace file (app/trace/run_trace.h) as a picture: for every rank a lane for each thread, and in
 * it what the thread did when. */
#ifndef MNIST_DDP_APP_REPORT_TRACE_PICTURE_H
#define MNIST_DDP_APP_REPORT_TRACE_PICTURE_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>

/* Writes the whole trace as a page (app/report/report.h). STATUS_INVALID if the file is no trace or
 * has no spans; STATUS_IO. */
status trace_picture_page_write(const char *trace_path, const char *page_path);

/* Writes three of the trace's steps as a trace of its own, for a report. */
status trace_picture_write_steps(const char *trace_path, const char *path);

/* *events: those of a trace file, the caller's to decref. STATUS_INVALID, STATUS_IO. */
status trace_picture_read(const char *trace_path, json_t **events);

/* What a thread did, as the file has it, which the texts belong to. */
typedef struct trace_picture_span {
    const char *name;
    const char *parameters; /* a bucket's; else NULL */
    int rank, thread;
    double begin_us, length_us;
    json_int_t bytes, step; /* -1: it has none */
} trace_picture_span;

/* Is the event a span? */
bool trace_picture_span_read(json_t *event, trace_picture_span *out);

#endif
