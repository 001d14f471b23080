/* The launcher's own stdout and stderr, which may not keep it from stopping its workers. */
#ifndef MNIST_DDP_APP_LAUNCH_CONSOLE_H
#define MNIST_DDP_APP_LAUNCH_CONSOLE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct launch_console {
    int stop_fd;     /* readable: the launcher is told to stop, and text may be dropped */
    bool hurried;    /* something is to be stopped: */
    int patience_ms; /* a reader that does not read is waited for so long then, once */
    bool gone[3];    /* by descriptor: its reader left; the run goes on */
} launch_console;

void launch_console_init(launch_console *console, int stop_fd);

/* Writes to STDOUT_FILENO or STDERR_FILENO. A reader that is slow is waited for, unless hurried. */
void launch_console_write(launch_console *console, int fd, const char *text, size_t size_bytes);

/* A line of the launcher's own, on stderr. */
void launch_console_say(launch_console *console, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
