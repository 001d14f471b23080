#include "app/launch/launch_signals.h"

#include <errno.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

status launch_signals_take(const sigset_t *stop, launch_signals *out)
{
    sigset_t taken, child, both;
    struct sigaction action;
    *out = (launch_signals){.stop_fd = -1, .child_fd = -1};
    sigemptyset(&taken);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (int signal = 1; signal < NSIG; signal++)
        if (sigismember(stop, signal) == 1 && sigaction(signal, NULL, &action) == 0 &&
            action.sa_handler != SIG_IGN)
            sigaddset(&taken, signal);
    sigorset(&both, &taken, &child);
    if (sigprocmask(SIG_BLOCK, &both, &out->mask) != 0)
        return FAIL(STATUS_IO, "launcher: signals: %s", strerror(errno));
    sigdelset(&out->mask, SIGTERM); /* how a worker is stopped, */
    sigdelset(&out->mask, SIGUSR1); /* and asked for a checkpoint */
    action = (struct sigaction){.sa_handler = SIG_DFL};
    sigaction(SIGCHLD, &action, NULL); /* ignored, the kernel would reap */
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
    out->stop_fd = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    out->child_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (out->stop_fd < 0 || out->child_fd < 0)
        return FAIL(STATUS_IO, "launcher: signalfd: %s", strerror(errno));
    return STATUS_OK;
}

void launch_signals_hold(launch_signals *signals)
{
    sigaddset(&signals->mask, SIGTERM);
    sigaddset(&signals->mask, SIGUSR1);
}

void launch_signals_close(launch_signals *signals)
{
    if (signals->stop_fd >= 0)
        close(signals->stop_fd);
    if (signals->child_fd >= 0)
        close(signals->child_fd);
    *signals = (launch_signals){.stop_fd = -1, .child_fd = -1};
}

int launch_signals_next(launch_signals *signals)
{
    struct signalfd_siginfo info;
    if (read(signals->stop_fd, &info, sizeof info) != (ssize_t)sizeof info)
        return 0;
    if (signals->stopped_by == 0)
        signals->stopped_by = (int)info.ssi_signo;
    return (int)info.ssi_signo;
}

void launch_signals_drain_children(const launch_signals *signals)
{
    struct signalfd_siginfo info;
    while (read(signals->child_fd, &info, sizeof info) == (ssize_t)sizeof info) {
    }
}
