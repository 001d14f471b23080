/* The launcher's own stdout and stderr. A reader that does not read (a stopped terminal, a pager)
 * keeps neither the launcher from its workers nor, by itself, the job from ending: what it does not
 * take waits here, and only who writes so much waits with it. */
#ifndef MNIST_DDP_APP_LAUNCH_CONSOLE_H
#define MNIST_DDP_APP_LAUNCH_CONSOLE_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

/* What one descriptor has not taken yet. */
typedef struct launch_backlog {
    char *text; /* owned */
    size_t size_bytes, room_bytes;
    int error; /* errno of a write; 0: none. Nothing is written any more, and the run goes on */
} launch_backlog;

typedef struct launch_console {
    int stop_fd;     /* readable: the launcher is told to stop, and text may be dropped */
    bool hurried;    /* something is to be stopped: */
    int patience_ms; /* a reader that does not read is waited for so long then, once */
    launch_backlog backlogs[3]; /* by descriptor */
} launch_console;

void launch_console_init(launch_console *console, int stop_fd);
void launch_console_close(launch_console *console); /* what still waits is dropped */

/* Writes to STDOUT_FILENO or STDERR_FILENO what these take at once; the rest waits. */
void launch_console_write(launch_console *console, int fd, const char *text, size_t size_bytes);

/* A line of the launcher's own, on stderr. */
void launch_console_say(launch_console *console, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Whether workers that write to this descriptor (or -1) should wait. */
bool launch_console_is_full(const launch_console *console, int fd);

/* For poll(): fills and returns 0 to 2 entries. Behind it: writes what is taken now. */
int launch_console_poll(const launch_console *console, struct pollfd *out);
void launch_console_push(launch_console *console);

/* Why not all of it could be written to the descriptor (errno); 0: it was, or waits. */
int launch_console_error(const launch_console *console, int fd);

/* Waits until all is written, as long as it takes; not if hurried, or once told to stop. */
void launch_console_flush(launch_console *console);

/* Whether stderr takes a line now, also one that is written around the console. */
bool launch_console_is_open(const launch_console *console);

#endif
