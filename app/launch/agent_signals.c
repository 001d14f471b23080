#include "app/launch/agent_signals.h"

#include <errno.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

status agent_signals_take(const sigset_t *stop, agent_signals *out)
{
    sigset_t taken, child, both;
    struct sigaction action;
    *out = (agent_signals){.stop_fd = -1, .child_fd = -1};
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

void agent_signals_hold(agent_signals *signals)
{
    sigaddset(&signals->mask, SIGTERM);
    sigaddset(&signals->mask, SIGUSR1);
}

void agent_signals_close(agent_signals *signals)
{
    if (signals->stop_fd >= 0)
        close(signals->stop_fd);
    if (signals->child_fd >= 0)
        close(signals->child_fd);
    *signals = (agent_signals){.stop_fd = -1, .child_fd = -1};
}

int agent_signals_next(agent_signals *signals)
{
    struct signalfd_siginfo info;
    if (read(signals->stop_fd, &info, sizeof info) != (ssize_t)sizeof info)
        return 0;
    if (signals->stopped_by == 0)
        signals->stopped_by = (int)info.ssi_signo;
    return (int)info.ssi_signo;
}

void agent_signals_drain_children(const agent_signals *signals)
{
    struct signalfd_siginfo info;
    while (read(signals->child_fd, &info, sizeof info) == (ssize_t)sizeof info) {
    }
}
