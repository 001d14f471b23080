#include "app/launch/orphan_reaper.h"

#include "base/host.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TITLE_ROOM = 4096 };

/* What ps shows, over the words of the agent's command line, which this process has a copy of. Only
 * where they are is known, and how long by /proc. */
static void set_title(const char *title)
{
    char line[TITLE_ROOM];
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, line, sizeof line) : -1;
    if (fd >= 0)
        close(fd);
    if (n <= 0 || memcmp(line, program_invocation_name, (size_t)n) != 0)
        return;
    memset(program_invocation_name, 0, (size_t)n);
    size_t length = strlen(title), most = (size_t)n - 1;
    memcpy(program_invocation_name, title, length < most ? length : most);
}

/* Only calls that are safe while another thread of the agent may have held any lock. */
__attribute__((noreturn)) static void guard(int fd, pid_t *groups, int n, const char *title)
{
    pid_t word;
    ssize_t got;
    setsid(); /* the terminal's signals are not for it */
    prctl(PR_SET_NAME, "orphan_reaper");
    set_title(title);
    if (dup2(fd, 0) != 0 || close_range(1, ~0u, 0) != 0 || chdir("/") != 0)
        _exit(EXIT_FAILURE);
    while ((got = read(0, &word, sizeof word)) == (ssize_t)sizeof word ||
           (got < 0 && errno == EINTR)) {
        pid_t from = word > 0 ? 0 : -word, to = word > 0 ? word : 0;
        for (int i = 0; i < n && got > 0; i++)
            if (groups[i] == from) {
                groups[i] = to;
                break;
            }
    }
    for (int i = 0; i < n; i++)
        if (groups[i] > 1)
            kill(-groups[i], SIGKILL);
    _exit(EXIT_SUCCESS);
}

status orphan_reaper_start(int n, orphan_reaper *out)
{
    int fds[2];
    char title[64];
    snprintf(title, sizeof title, "mnist_ddp: orphan_reaper of %d", (int)getpid());
    *out = (orphan_reaper){.fd = -1};
    pid_t *groups = calloc((size_t)n, sizeof *groups);
    if (groups == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d groups", n);
    if (pipe2(fds, O_CLOEXEC) != 0) {
        free(groups);
        return FAIL(STATUS_IO, "orphan_reaper: pipe: %s", file_limit_reason(errno));
    }
    pid_t child = fork();
    if (child == 0) {
        if (fork() == 0)
            guard(fds[0], groups, n, title);
        _exit(EXIT_SUCCESS);
    }
    int error = errno;
    free(groups);
    close(fds[0]);
    out->fd = fds[1];
    if (child > 0)
        waitpid(child, NULL, 0);
    else
        orphan_reaper_close(out);
    return child > 0 ? STATUS_OK : FAIL(STATUS_IO, "orphan_reaper: fork: %s", strerror(error));
}

/* If it was killed, the write fails, and all is as without one. */
static void tell(const orphan_reaper *reaper, pid_t word)
{
    while (reaper->fd >= 0 && write(reaper->fd, &word, sizeof word) < 0 && errno == EINTR)
        continue;
}

void orphan_reaper_watch(const orphan_reaper *reaper, pid_t group)
{
    tell(reaper, group);
}

void orphan_reaper_forget(const orphan_reaper *reaper, pid_t group)
{
    tell(reaper, -group);
}

void orphan_reaper_close(orphan_reaper *reaper)
{
    if (reaper->fd >= 0)
        close(reaper->fd);
    reaper->fd = -1;
}
