#include "app/launch/launch_console.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FULL_MS = 500, CHUNK_BYTES = 4096 /* PIPE_BUF */ };

void launch_console_init(launch_console *console, int stop_fd)
{
    *console = (launch_console){.stop_fd = stop_fd, .patience_ms = FULL_MS};
}

void launch_console_write(launch_console *console, int fd, const char *text, size_t size_bytes)
{
    while (size_bytes > 0 && !console->gone[fd]) {
        struct pollfd fds[2] = {{.fd = fd, .events = POLLOUT},
                                {.fd = console->stop_fd, .events = POLLIN}};
        int ready = poll(fds, 2, console->hurried ? console->patience_ms : -1);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready == 0)
            console->patience_ms = 0; /* once, not for every line */
        if (ready <= 0 || fds[0].revents == 0)
            return;
        size_t chunk = size_bytes < CHUNK_BYTES ? size_bytes : CHUNK_BYTES;
        ssize_t n = write(fd, text, chunk);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            console->gone[fd] = true;
        if (n > 0) {
            text += n;
            size_bytes -= (size_t)n;
        }
    }
}

void launch_console_say(launch_console *console, const char *fmt, ...)
{
    char line[1024];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (length > 0)
        launch_console_write(console, STDERR_FILENO, line, strlen(line));
}
