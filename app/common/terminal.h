/* What a descriptor is for whoever reads it: a terminal and its width, and whether lines may have
 * colours.
 *
 * At the foot of a terminal may stand a status line that says what goes on: drawn anew ten times a
 * second by a thread of its own, as wide as the terminal is then. Another process may have drawn
 * it. So every line that goes to a terminal erases first what stands in the cursor's row, in the
 * same write, and the status line stands below it the next time. */
#ifndef MNIST_DDP_APP_COMMON_TERMINAL_H
#define MNIST_DDP_APP_COMMON_TERMINAL_H

#include "base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* To the row's first column, and erase the row. */
#define TERMINAL_ERASE "\r\033[K"

/* Around words that are to be seen; "" and "" for a descriptor without colours. */
#define TERMINAL_RED "\033[31m"
#define TERMINAL_GREEN "\033[32m"
#define TERMINAL_YELLOW "\033[33m"
#define TERMINAL_PLAIN "\033[0m"

typedef struct terminal_facts {
    bool erases;  /* a terminal that TERMINAL_ERASE works on: $TERM is neither unset nor "dumb",
                     and it is not the one that a launcher such as mpirun makes for its ranks */
    bool colours; /* by $NO_COLOR, else $CLICOLOR_FORCE, else those that erase */
    int columns;  /* if it erases: lines are broken there, between words; 0: nowhere */
} terminal_facts;

terminal_facts terminal_of(int fd);

/* Whether what is written to `fd` may be shown on a terminal by the process that reads it: a pipe
 * or socket. */
bool terminal_may_follow(int fd);

/* Bytes that terminal_format adds at most. */
enum { TERMINAL_FORMAT_BYTES = 32 };

/* A line of a log, or its beginning, as the terminal is to get it: with TERMINAL_ERASE, and with a
 * coloured "error:" or "warning:", which may stand after a prefix in brackets; and broken between
 * words, unless it has a command to be copied. Returns the bytes written to `out`, at most
 * TERMINAL_FORMAT_BYTES more than `size_bytes`. */
size_t terminal_format(terminal_facts t, const char *line, size_t size_bytes, char *out);

/* A pipe or terminal is opened once more, so that a write to it does not wait: poll() tells of room
 * that another process may take first, and of less than a line on a terminal. To set O_NONBLOCK on
 * `fd` would set it for other processes too. Returns `fd` itself if it cannot be, and for other
 * files, which do not wait for a reader. */
int terminal_open_again(int fd);

/* From here on the lines of this process's log come to stderr as it is a terminal, or are to have
 * colours. Replaces the log's sink. While no other thread logs. */
void terminal_take_log(void);

/* From here on what this thread logs waits half a second at most for a terminal that is stopped, or
 * a pipe that nobody reads, and is then left out. For a thread that must go on. After
 * terminal_take_log. */
void terminal_hurry_log(void);

/* Erases the status line if stderr is its terminal: before this process ends at once, without
 * status_line_close. Waits as terminal_hurry_log says. */
void terminal_leave(void);

enum { STATUS_PARTS = 12, STATUS_PART_BYTES = 96, STATUS_TIME_BYTES = 24 };

/* What it says: parts in their order, parted by blanks. */
typedef struct status_parts {
    int n;
    struct {
        char text[STATUS_PART_BYTES]; /* its letters are one column wide */
        int priority; /* if columns are few, the part of the lowest is left out first */
    } parts[STATUS_PARTS];
    double done;      /* how full the bar after the first part is, 0 to 1; begins as 0 */
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

/* Adds the parts to an empty list. On the line's own thread, with its lock. */
typedef void status_line_tell(void *ctx, status_parts *out);

/* Begins zeroed, and stays where it is while it is open. */
typedef struct status_line {
    int fd;
    status_line_tell *tell;
    void *ctx;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all that `tell` reads */
    pthread_cond_t changed;
    bool open, is_drawn, ending;
} status_line;

/* Draws on the terminal `fd` until it is closed. -1, or if there is no thread left: it is drawn
 * nowhere, and has its lock all the same. */
void status_line_open(int fd, status_line_tell *tell, void *ctx, status_line *out);

/* Erases it. Accepts a zeroed one. */
void status_line_close(status_line *line);

#endif
