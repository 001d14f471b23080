/* The launcher's own stdout and stderr. A reader that does not read (a stopped terminal, a pager)
 * keeps neither the launcher from its workers nor, by itself, the job from ending: what it does not
 * take waits here, and only who writes so much waits with it. */
#ifndef MNIST_DDP_APP_LAUNCH_AGENT_CONSOLE_H
#define MNIST_DDP_APP_LAUNCH_AGENT_CONSOLE_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

/* What one descriptor has not taken yet. */
typedef struct console_backlog {
    char *text; /* owned */
    size_t size_bytes, room_bytes;
    int error; /* errno of a write; 0: none. Nothing is written any more, and the run goes on */
} console_backlog;

typedef struct agent_console {
    int stop_fd;     /* readable: the launcher is told to stop, and text may be dropped */
    bool hurried;    /* something is to be stopped: */
    int patience_ms; /* a reader that does not read is waited for so long then, once */
    console_backlog backlogs[3]; /* by descriptor */
} agent_console;

void agent_console_init(agent_console *console, int stop_fd);
void agent_console_close(agent_console *console); /* what still waits is dropped */

/* Writes to STDOUT_FILENO or STDERR_FILENO what these take at once; the rest waits. */
void agent_console_write(agent_console *console, int fd, const char *text, size_t size_bytes);

/* A line of the launcher's own, on stderr. */
void agent_console_say(agent_console *console, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Whether workers that write to this descriptor (or -1) should wait. */
bool agent_console_is_full(const agent_console *console, int fd);

/* For poll(): fills and returns 0 to 2 entries. Behind it: writes what is taken now. */
int agent_console_poll(const agent_console *console, struct pollfd *out);
void agent_console_push(agent_console *console);

/* Why not all of it could be written to the descriptor (errno); 0: it was, or waits. */
int agent_console_error(const agent_console *console, int fd);

/* Waits until all is written, as long as it takes; not if hurried, or once told to stop. */
void agent_console_flush(agent_console *console);

/* Whether stderr takes a line now, also one that is written around the console. */
bool agent_console_is_open(const agent_console *console);

#endif
