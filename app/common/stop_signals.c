#include "app/common/stop_signals.h"

#include <errno.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

status stop_signals_take(const sigset_t *which, stop_signals *out)
{
    stop_signals signals = {.fd = -1};
    sigset_t taken;
    struct sigaction action;
    sigemptyset(&taken);
    for (int signal = 1; signal < NSIG; signal++)
        if (sigismember(which, signal) == 1 && sigaction(signal, NULL, &action) == 0 &&
            action.sa_handler != SIG_IGN)
            sigaddset(&taken, signal);
    if (sigprocmask(SIG_BLOCK, &taken, &signals.before) == 0)
        signals.fd = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals.fd < 0)
        return FAIL(STATUS_IO, "signalfd: %s", strerror(errno));
    *out = signals;
    return STATUS_OK;
}

void stop_signals_close(stop_signals *signals)
{
    if (signals->fd > 0)
        close(signals->fd);
    signals->fd = 0;
}

int stop_signals_next(stop_signals *signals)
{
    struct signalfd_siginfo info;
    if (signals->fd <= 0 || read(signals->fd, &info, sizeof info) != (ssize_t)sizeof info)
        return 0;
    if (signals->first == 0)
        signals->first = (int)info.ssi_signo;
    return (int)info.ssi_signo;
}

bool stop_signals_came(stop_signals *signals)
{
    while (stop_signals_next(signals) != 0) {
    }
    return signals->first != 0;
}
