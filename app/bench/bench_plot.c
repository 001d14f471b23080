#include "app/bench/bench_plot.h"

#include "base/clock.h"
#include "base/file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DRAW_TIMEOUT_MS = 60000, SAID_BYTES = 400, COMMAND_BYTES = 2 * FILE_PATH_BYTES };

static const char FONT[] = "font 'sans-serif,14'";

bool bench_plot_is_possible(void)
{
    const char *path = getenv("PATH");
    char file[FILE_PATH_BYTES];
    for (const char *at = path; at != NULL && *at != '\0';) {
        int length = (int)strcspn(at, ":");
        snprintf(file, sizeof file, "%.*s/gnuplot", length, at);
        if (access(file, X_OK) == 0)
            return true;
        at += length;
        at += *at == ':';
    }
    return false;
}

void bench_plot_quote(const char *text, char *out, size_t size_bytes)
{
    size_t used = 0;
    for (; *text != '\0' && used + 4 < size_bytes; text++) {
        if (*text == '"' || *text == '\\' || (unsigned char)*text < ' ')
            continue;
        if (strchr("_^{}@&~", *text) != NULL) { /* what gnuplot's enhanced text means otherwise */
            out[used++] = '\\';
            out[used++] = '\\';
        }
        out[used++] = *text;
    }
    out[used] = '\0';
}

__attribute__((noreturn)) static void become_gnuplot(const char *folder, const char *command,
                                                     const char *script, int said)
{
    int nothing = open("/dev/null", O_RDONLY);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (chdir(folder) != 0 || nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 ||
        dup2(said, STDOUT_FILENO) < 0 || dup2(said, STDERR_FILENO) < 0)
        _exit(127);
    execlp("gnuplot", "gnuplot", "-e", command, script, (char *)NULL);
    _exit(127);
}

/* waitpid's state; a gnuplot that hangs is killed. */
static int wait_for(pid_t pid)
{
    int state = 0, pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    int64_t deadline_ns = clock_deadline_ns(DRAW_TIMEOUT_MS);
    struct pollfd end = {.fd = pidfd, .events = POLLIN};
    int n = 0;
    while (pidfd >= 0 && (n = poll(&end, 1, clock_remaining_ms(deadline_ns))) < 0 && errno == EINTR)
        ;
    if (n <= 0)
        kill(pid, SIGKILL);
    while (waitpid(pid, &state, 0) < 0 && errno == EINTR)
        ;
    if (pidfd >= 0)
        close(pidfd);
    return state;
}

/* What gnuplot has written, as one line. */
static void read_said(int fd, char *out, size_t size_bytes)
{
    ssize_t n = pread(fd, out, size_bytes - 1, 0);
    out[n > 0 ? n : 0] = '\0';
    for (char *c = out; *c != '\0'; c++)
        if (*c == '\n' || *c == '\t')
            *c = ' ';
}

static status run_gnuplot(const char *folder, const char *command, const char *script)
{
    char said[SAID_BYTES];
    int fd = memfd_create("gnuplot", MFD_CLOEXEC);
    if (fd < 0)
        return FAIL(STATUS_IO, "memfd_create: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0)
        become_gnuplot(folder, command, script, fd);
    int state = pid > 0 ? wait_for(pid) : -1;
    read_said(fd, said, sizeof said);
    close(fd);
    if (pid < 0)
        return FAIL(STATUS_IO, "fork: %s", strerror(errno));
    if (WIFSIGNALED(state))
        return FAIL(STATUS_INVALID, "gnuplot was ended by SIG%s", sigabbrev_np(WTERMSIG(state)));
    if (WEXITSTATUS(state) != 0)
        return FAIL(STATUS_INVALID, "gnuplot: exit code %d: %s", WEXITSTATUS(state), said);
    return STATUS_OK;
}

/* One image: under a name of its own first, so that a failure leaves no half of it. */
static status draw(const char *folder, const char *name, const char *terminal, const char *kind)
{
    char command[COMMAND_BYTES], script[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    char made[FILE_PATH_BYTES + 8];
    snprintf(script, sizeof script, "%s.gp", name);
    snprintf(command, sizeof command, "set terminal %s; set output '%s.%s.tmp'", terminal, name,
             kind);
    snprintf(path, sizeof path, "%.3000s/%.200s.%s", folder, name, kind);
    snprintf(made, sizeof made, "%s.tmp", path);
    status st = run_gnuplot(folder, command, script);
    if (st == STATUS_OK && rename(made, path) != 0)
        st = FAIL(STATUS_IO, "rename %s: %s", made, strerror(errno));
    if (st != STATUS_OK)
        unlink(made);
    return st;
}

status bench_plot_draw(const char *folder, const char *name, const char *script)
{
    char file[FILE_PATH_BYTES], path[FILE_PATH_BYTES], svg[256], png[256], word[65];
    snprintf(word, sizeof word, "%s", name); /* what gnuplot takes for one */
    for (char *c = word; *c != '\0'; c++)
        *c = isalnum((unsigned char)*c) ? *c : '_';
    snprintf(file, sizeof file, "%s.gp", name);
    TRY(file_join(folder, file, path));
    const file_part part = {script, strlen(script)};
    TRY(file_replace(path, &part, 1));
    snprintf(svg, sizeof svg, "svg size 900,540 dynamic name '%s' %s background 'white'", word,
             FONT);
    snprintf(png, sizeof png, "pngcairo size 1800,1080 fontscale 2 linewidth 2 pointscale 2 %s",
             FONT);
    TRY(draw(folder, name, svg, "svg"));
    return draw(folder, name, png, "png");
}
