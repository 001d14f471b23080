#include "tests/support/process.h"

#include "base/clock.h"
#include "tests/support/program.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ENVIRON_BYTES = 65536 };

void process_read(pid_t pid, const char *name, char *out, size_t size_bytes)
{
    char path[128];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = 0, total = 0;
    while (fd >= 0 && (n = read(fd, out + total, size_bytes - 1 - (size_t)total)) > 0)
        total += n;
    out[total] = '\0';
    for (ssize_t i = 0; i < total; i++) /* environ parts its variables with zero bytes */
        if (out[i] == '\0')
            out[i] = '\n';
    if (fd >= 0)
        close(fd);
}

int process_children(pid_t launcher, pid_t *out)
{
    char name[64], text[512];
    int n = 0;
    snprintf(name, sizeof name, "task/%d/children", (int)launcher);
    process_read(launcher, name, text, sizeof text);
    for (char *at = text, *end = NULL; n < MAX_RANKS; at = end) {
        long pid = strtol(at, &end, 10);
        if (end == at)
            break;
        out[n++] = (pid_t)pid;
    }
    return n;
}

pid_t process_of_rank(pid_t launcher, int rank)
{
    static char text[ENVIRON_BYTES];
    pid_t pids[MAX_RANKS];
    char variable[32];
    snprintf(variable, sizeof variable, "\nRANK=%d\n", rank);
    int n = process_children(launcher, pids);
    for (int i = 0; i < n; i++) {
        process_read(pids[i], "environ", text, sizeof text);
        if (strstr(text, variable) != NULL)
            return pids[i];
    }
    ck_abort_msg("launcher %d has no rank %d among %d children", (int)launcher, rank, n);
    return -1;
}

/* 'R', 'S', 'T', ...; 'X': there is none. */
static char state_of(pid_t pid)
{
    char text[512];
    process_read(pid, "stat", text, sizeof text);
    const char *end = strrchr(text, ')'); /* of the name; the state follows */
    return end != NULL ? end[2] : 'X';
}

void process_await_stopped(pid_t pid)
{
    int64_t deadline_ns = clock_deadline_ns(RUN_S * 1000);
    while (state_of(pid) != 'T') {
        ck_assert_msg(!clock_passed(deadline_ns), "process %d is not stopped", (int)pid);
        clock_sleep_ms(1);
    }
}

/* Of the whole process, as kill() sends it. */
static bool is_pending(pid_t pid, int signal)
{
    static const char field[] = "ShdPnd:";
    char text[4096];
    process_read(pid, "status", text, sizeof text);
    const char *at = strstr(text, field);
    return at != NULL && (strtoull(at + sizeof field - 1, NULL, 16) >> (signal - 1) & 1) != 0;
}

void process_await_taken(pid_t pid, int signal)
{
    int64_t deadline_ns = clock_deadline_ns(RUN_S * 1000);
    while (is_pending(pid, signal)) {
        ck_assert_msg(!clock_passed(deadline_ns), "process %d does not take signal %d", (int)pid,
                      signal);
        clock_sleep_ms(1);
    }
}

bool process_is_gone(pid_t pid)
{
    char state = state_of(pid);
    return state == 'Z' || state == 'X';
}

void process_assert_gone(const pid_t *pids, int n, int within_ms)
{
    int64_t deadline_ns = clock_deadline_ns(within_ms);
    for (int i = 0; i < n; i++) {
        while (!process_is_gone(pids[i]) && !clock_passed(deadline_ns))
            clock_sleep_ms(POLL_MS);
        bool gone = process_is_gone(pids[i]);
        if (!gone)
            kill(pids[i], SIGKILL);
        ck_assert_msg(gone, "process %d is left over after %d ms", (int)pids[i], within_ms);
    }
}
