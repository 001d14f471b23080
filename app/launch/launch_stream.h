/* The launcher's end of one pipe: a worker's stdout or stderr. */
#ifndef MNIST_DDP_APP_LAUNCH_STREAM_H
#define MNIST_DDP_APP_LAUNCH_STREAM_H

#include "app/launch/launch_console.h"
#include "app/launch/launch_logs.h"

#include <stdbool.h>
#include <stdint.h>

enum { STREAM_LINES = 20, STREAM_LINE_BYTES = 4096, STREAM_KEPT_BYTES = 1000 };

typedef struct launch_stream {
    int fd;                           /* the reading end, not blocking; -1: none, or at its end */
    bool polled;                      /* it is, in this turn */
    int file;                         /* takes a copy of every byte; -1 */
    int target;                       /* the launcher's stdout or stderr; -1: not shown */
    char prefix[LAUNCH_PREFIX_BYTES]; /* before each line that is shown */
    bool begun;                       /* the line under way has its prefix already */
    char line[STREAM_LINE_BYTES];     /* begun, not yet shown */
    size_t line_bytes;
    char *lines[STREAM_LINES]; /* the last ones, a ring: line k is at k % STREAM_LINES */
    int64_t lines_seen;
} launch_stream;

/* Reads nothing, shows nothing. */
void launch_stream_init(launch_stream *stream);

/* Reads what the pipe holds now, as far as the console takes it, shows whole lines and keeps the
 * last ones. Never blocks; at the pipe's end `fd` is closed and a begun line shown. false: it was
 * read empty. */
bool launch_stream_read(launch_stream *stream, launch_console *console);

/* Line k of the last STREAM_LINES. */
const char *launch_stream_line(const launch_stream *stream, int64_t k);

/* Keeps the last lines of a file that the worker wrote itself. */
void launch_stream_take_file(launch_stream *stream, const char *path);

/* Shows a begun line, closes and frees everything. */
void launch_stream_close(launch_stream *stream, launch_console *console);

#endif
