#include "app/demo/reader.h"

#include "app/common/stop_signals.h"
#include "base/clock.h"

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    WORD_MS = 200, /* of a reader */
    LOOK_MS = 800, /* at a table */
};

/* No terminal of another process group's: to read it would stop this one. */
static bool is_my_terminal(int fd)
{
    pid_t foreground = tcgetpgrp(fd);
    return isatty(fd) && (foreground < 0 || foreground == getpgrp());
}

void reader_greet(void)
{
    if (is_my_terminal(STDIN_FILENO))
        puts("Enter shows the next step at once.");
}

static int count_words(const char *text)
{
    int words = 0;
    for (bool inside = false; *text != '\0'; text++) {
        words += !inside && *text != ' ';
        inside = *text != ' ';
    }
    return words;
}

static int64_t pace_ms_of(const json_t *frame)
{
    size_t i;
    json_t *paragraph;
    int64_t pace_ms = json_array_size(json_object_get(frame, "rows")) > 0 ? LOOK_MS : 0;
    json_array_foreach(json_object_get(frame, "text"), i, paragraph) pace_ms +=
        (int64_t)WORD_MS * count_words(json_string_value(paragraph));
    return pace_ms < READER_MOST_MS ? pace_ms : READER_MOST_MS;
}

static bool may_be_typed(int fd)
{
    struct stat about;
    return is_my_terminal(fd) || (fstat(fd, &about) == 0 && S_ISFIFO(about.st_mode));
}

/* The next byte of stdin; false: none will come. Since a moment ago this process may have gone to
 * the background: with SIGTTIN blocked that is an error, and no stop. */
static bool read_key(char *out)
{
    sigset_t background, before;
    sigemptyset(&background);
    sigaddset(&background, SIGTTIN);
    pthread_sigmask(SIG_BLOCK, &background, &before);
    ssize_t n = read(STDIN_FILENO, out, 1);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return n == 1;
}

/* Returns whether a signal stops the demonstration. */
static bool wait_until(int64_t deadline_ns, int stops)
{
    struct pollfd fds[] = {{may_be_typed(STDIN_FILENO) ? STDIN_FILENO : -1, POLLIN, 0},
                           {stops, POLLIN, 0}};
    while (!clock_passed(deadline_ns)) {
        char key = 0;
        int n = poll(fds, 2, clock_remaining_ms(deadline_ns));
        if (n > 0 && fds[1].revents != 0)
            return true;
        if (n <= 0 || fds[0].revents == 0)
            continue;
        if (!read_key(&key))
            fds[0].fd = -1;
        if (key == '\n')
            break;
    }
    return false;
}

status reader_wait(const json_t *frame)
{
    int stops = stop_signals_watch_blocked();
    bool stopped = wait_until(clock_deadline_ns(pace_ms_of(frame)), stops);
    if (stops >= 0)
        close(stops);
    return stopped ? FAIL(STATUS_TIMEOUT, "stopped by a signal") : STATUS_OK;
}
