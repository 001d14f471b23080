/* One line at the foot of a terminal that says what goes on: drawn anew ten times a second by a
 * thread of its own, as wide as the terminal is then. Lines that others write to the terminal
 * meanwhile erase it (app/common/terminal.h), and it stands below them the next time. */
#ifndef MNIST_DDP_APP_COMMON_STATUS_LINE_H
#define MNIST_DDP_APP_COMMON_STATUS_LINE_H

#include "base/status.h"

#include <pthread.h>
#include <stdbool.h>

enum { STATUS_PARTS = 12, STATUS_PART_BYTES = 96, STATUS_TIME_BYTES = 24 };

/* What it says: parts in their order, parted by blanks. */
typedef struct status_parts {
    int n;
    struct {
        char text[STATUS_PART_BYTES]; /* of letters one column wide */
        int priority; /* if columns are few, the part of the lowest is left out first */
    } parts[STATUS_PARTS];
    double done;      /* of a bar after the first part, 0 to 1; begins as 0 */
    int bar_priority; /* 0: no bar */
} status_parts;

/* One more part; what does not fit its room is cut. */
void status_parts_add(status_parts *to, int priority, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A part such as "1:05 left". */
void status_parts_add_time(status_parts *to, int priority, double seconds, const char *what);

/* "1:05" or "2:01:05". */
void status_parts_time(double seconds, char out[STATUS_TIME_BYTES]);

/* The line in at most `columns` columns; `out` has room for one byte more. */
void status_parts_fit(const status_parts *parts, int columns, char *out);

/* Adds the parts to an empty list. On the line's own thread. */
typedef void status_line_tell(void *ctx, status_parts *out);

/* Begins zeroed, and stays where it is while it is open. */
typedef struct status_line {
    int fd;
    status_line_tell *tell;
    void *ctx;
    pthread_t thread;
    pthread_mutex_t lock; /* of `ending` */
    pthread_cond_t changed;
    bool open, ending;
} status_line;

/* Draws on the terminal `fd` until it is closed. STATUS_NO_MEMORY if there is no thread left. */
status status_line_open(int fd, status_line_tell *tell, void *ctx, status_line *out);

/* Erases it. Accepts a zeroed one. */
void status_line_close(status_line *line);

#endif
