#include "app/launch/agent_console.h"

#include "base/printable.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FULL_MS = 500,
    CHUNK_BYTES = 4096,     /* PIPE_BUF: so much a pipe takes at once, or says that it does not */
    BACKLOG_BYTES = 1 << 20 /* where nobody is made to wait, the rest is dropped */
};

void agent_console_init(agent_console *console, int stop_fd)
{
    *console = (agent_console){.stop_fd = stop_fd, .patience_ms = FULL_MS};
}

void agent_console_close(agent_console *console)
{
    for (int fd = 0; fd < 3; fd++)
        free(console->backlogs[fd].text);
    *console = (agent_console){.stop_fd = -1};
}

static void keep(console_backlog *backlog, const char *text, size_t size_bytes)
{
    size_t needed = backlog->size_bytes + size_bytes;
    if (needed > BACKLOG_BYTES)
        return;
    if (needed > backlog->room_bytes) {
        char *larger = realloc(backlog->text, needed * 2);
        if (larger == NULL) {
            backlog->error = ENOMEM;
            backlog->size_bytes = 0;
            return;
        }
        backlog->text = larger;
        backlog->room_bytes = needed * 2;
    }
    memcpy(backlog->text + backlog->size_bytes, text, size_bytes);
    backlog->size_bytes = needed;
}

/* How much the descriptor takes now. */
static size_t write_now(console_backlog *backlog, int fd, const char *text, size_t size_bytes)
{
    size_t done = 0;
    while (done < size_bytes && backlog->error == 0) {
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        if (poll(&ready, 1, 0) <= 0)
            break;
        size_t rest = size_bytes - done;
        ssize_t n = write(fd, text + done, rest < CHUNK_BYTES ? rest : CHUNK_BYTES);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            backlog->error = errno;
        if (n < 0 && errno == EAGAIN)
            break;
        done += n > 0 ? (size_t)n : 0;
    }
    return backlog->error != 0 ? size_bytes : done;
}

static void push(console_backlog *backlog, int fd)
{
    size_t done = write_now(backlog, fd, backlog->text, backlog->size_bytes);
    if (done > 0 && done < backlog->size_bytes)
        memmove(backlog->text, backlog->text + done, backlog->size_bytes - done);
    backlog->size_bytes -= done;
}

void agent_console_push(agent_console *console)
{
    for (int fd = 0; fd < 3; fd++)
        if (console->backlogs[fd].size_bytes > 0)
            push(&console->backlogs[fd], fd);
}

void agent_console_write(agent_console *console, int fd, const char *text, size_t size_bytes)
{
    console_backlog *backlog = &console->backlogs[fd];
    size_t done = 0;
    if (backlog->size_bytes > 0)
        push(backlog, fd);
    if (backlog->size_bytes == 0)
        done = write_now(backlog, fd, text, size_bytes);
    if (done < size_bytes)
        keep(backlog, text + done, size_bytes - done);
}

void agent_console_say(agent_console *console, const char *fmt, ...)
{
    char text[1024], line[2048];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (length < 0)
        return;
    printable_copy(PRINTABLE_LINES, text, line, sizeof line);
    agent_console_write(console, STDERR_FILENO, line, strlen(line));
}

bool agent_console_is_full(const agent_console *console, int fd)
{
    return fd >= 0 && console->backlogs[fd].size_bytes > 0 && !console->hurried;
}

int agent_console_poll(const agent_console *console, struct pollfd *out)
{
    int n = 0;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (console->backlogs[fd].size_bytes > 0)
            out[n++] = (struct pollfd){.fd = fd, .events = POLLOUT};
    return n;
}

void agent_console_flush(agent_console *console)
{
    struct pollfd fds[3];
    for (;;) {
        agent_console_push(console);
        int n = agent_console_poll(console, fds);
        if (n == 0)
            return;
        fds[n] = (struct pollfd){.fd = console->stop_fd, .events = POLLIN};
        bool hurried = console->hurried || (poll(&fds[n], 1, 0) > 0);
        int ready = poll(fds, (nfds_t)(hurried ? n : n + 1), hurried ? console->patience_ms : -1);
        if (hurried && ready == 0) {
            console->patience_ms = 0; /* once, not for every line */
            return;
        }
    }
}

int agent_console_error(const agent_console *console, int fd)
{
    return console->backlogs[fd].error;
}

bool agent_console_is_open(const agent_console *console)
{
    struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
    return console->backlogs[STDERR_FILENO].size_bytes == 0 && poll(&ready, 1, 0) > 0;
}
