/* The launcher's end of one pipe: a worker's stdout or stderr. */
#ifndef MNIST_DDP_APP_LAUNCH_WORKER_OUTPUT_H
#define MNIST_DDP_APP_LAUNCH_WORKER_OUTPUT_H

#include "app/launch/agent_console.h"
#include "app/launch/worker_logs.h"

#include <stdbool.h>
#include <stdint.h>

enum { OUTPUT_LINES = 20, OUTPUT_LINE_BYTES = 4096, OUTPUT_KEPT_BYTES = 1000 };

typedef struct worker_output {
    int fd;                         /* the reading end, not blocking; -1: none, or at its end */
    bool polled;                    /* it is, in this turn */
    int file;                       /* takes a copy of every byte; -1 */
    int target;                     /* the launcher's stdout or stderr; -1: not shown */
    char prefix[LOGS_PREFIX_BYTES]; /* before each line that is shown */
    bool begun;                     /* the line under way has its prefix already */
    char line[OUTPUT_LINE_BYTES];   /* begun, not yet shown */
    size_t line_bytes;
    char *lines[OUTPUT_LINES]; /* the last ones, a ring: line k is at k % STREAM_LINES */
    int64_t lines_seen;
} worker_output;

/* Reads nothing, shows nothing. */
void worker_output_init(worker_output *output);

/* Opens the worker's end of a stream that reads nothing yet. *fd: what the worker writes to, the
 * caller's to close; -1: the agent's own. STATUS_IO. */
status worker_output_open(worker_output *output, const worker_route *route, int *fd);

/* Reads what the pipe holds now, as far as the console takes it, shows whole lines and keeps the
 * last ones. Never blocks; at the pipe's end `fd` is closed and a begun line shown. false: it was
 * read empty. */
bool worker_output_read(worker_output *output, agent_console *console);

/* Line k of the last STREAM_LINES. */
const char *worker_output_line(const worker_output *output, int64_t k);

/* Keeps the last lines of a file that the worker wrote itself. */
void worker_output_take_file(worker_output *output, const char *path);

/* Shows a begun line, closes and frees everything. */
void worker_output_close(worker_output *output, agent_console *console);

#endif
