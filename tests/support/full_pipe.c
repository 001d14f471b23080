#include "tests/support/full_pipe.h"

#include "base/clock.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { FILLER_BYTES = 4096, HELD_BYTES = 8192 };

void full_pipe_open(full_pipe *out)
{
    static const char filler[FILLER_BYTES];
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    *out = (full_pipe){ends[0], ends[1]};
    ck_assert_int_eq(fcntl(out->into, F_SETFL, O_NONBLOCK), 0);
    while (write(out->into, filler, sizeof filler) > 0)
        continue;
    ck_assert_int_eq(fcntl(out->into, F_SETFL, 0), 0); /* whoever writes now waits */
}

void full_pipe_close(full_pipe *pipe)
{
    close(pipe->from);
    close(pipe->into);
}

static int as_stdout(int fd)
{
    return dup2(fd, STDOUT_FILENO) < 0;
}

static int as_stderr(int fd)
{
    return dup2(fd, STDERR_FILENO) < 0;
}

program full_pipe_start(const full_pipe *pipe, int fd, const char *const *argv)
{
    return program_start_after(argv, fd == STDOUT_FILENO ? as_stdout : as_stderr, pipe->into);
}

void full_pipe_await(full_pipe *pipe, const char *words, int timeout_s)
{
    char chunk[FILLER_BYTES], held[HELD_BYTES] = "";
    int64_t deadline_ns = clock_deadline_ns((int64_t)timeout_s * 1000);
    size_t used = 0;
    while (strstr(held, words) == NULL) {
        struct pollfd ready = {.fd = pipe->from, .events = POLLIN};
        ck_assert_msg(poll(&ready, 1, clock_remaining_ms(deadline_ns)) > 0, "no \"%s\" in: %s",
                      words, held);
        ssize_t n = read(pipe->from, chunk, sizeof chunk);
        ck_assert_int_gt(n, 0);
        for (ssize_t i = 0; i < n && used + 1 < sizeof held; i++)
            if (chunk[i] != '\0') /* no filler */
                held[used++] = chunk[i];
    }
}
