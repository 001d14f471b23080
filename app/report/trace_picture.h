/* A trace file (app/trace/run_trace.h) as a picture: for every rank a lane for each thread, and in
 * it what the thread did when. The longer spans have their names in them; all say more under the
 * mouse. */
#ifndef MNIST_DDP_APP_REPORT_TRACE_PICTURE_H
#define MNIST_DDP_APP_REPORT_TRACE_PICTURE_H

#include "base/status.h"

/* Writes the whole trace as a page, which needs no network: the wheel zooms, the mouse moves.
 * STATUS_INVALID if the file is no trace; STATUS_IO. */
status trace_picture_write_page(const char *trace_path, const char *page_path);

/* Writes three of the trace's steps as an SVG file, for a report. */
status trace_picture_write_steps(const char *trace_path, const char *svg_path);

#endif
