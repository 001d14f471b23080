#include "app/common/stop_signals.h"

#include "app/options/options_table.h"
#include "base/host.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { NAME_BYTES = 24, SHOWN_BYTES = 60 };

/* Longer than two programs take to send the same wish, shorter than two presses of a key. */
static const int64_t ONE_WISH_NS = 100 * 1000000LL;

/* "SIGTERM" or "TERM" to its number; 0: there is none. */
static int number_of(const char *name)
{
    if (strncmp(name, "SIG", 3) == 0)
        name += 3;
    for (int signal = 1; signal < NSIG; signal++) {
        const char *abbreviation = sigabbrev_np(signal);
        if (abbreviation != NULL && strcmp(abbreviation, name) == 0)
            return signal;
    }
    return 0;
}

static status no_such_signal(const char *name)
{
    char candidate[NAME_BYTES];
    nearest search;
    nearest_init(&search, name);
    for (int signal = 1; signal < NSIG; signal++) {
        const char *abbreviation = sigabbrev_np(signal);
        if (abbreviation == NULL)
            continue;
        snprintf(candidate, sizeof candidate, "SIG%s", abbreviation);
        nearest_offer(&search, candidate);
    }
    if (nearest_found(&search))
        return FAIL(STATUS_INVALID, "--signals-to-handle: no signal '%.*s'; did you mean '%s'?",
                    SHOWN_BYTES, name, search.best);
    return FAIL(STATUS_INVALID,
                "--signals-to-handle: no signal '%.*s'; expected a list as in SIGTERM,SIGINT",
                SHOWN_BYTES, name);
}

status stop_signals_parse(const char *text, sigset_t *out)
{
    size_t length;
    sigset_t which;
    sigemptyset(&which);
    for (const char *at = text, *word; (word = comma_list_next(&at, &length)) != NULL;) {
        char name[NAME_BYTES * 4];
        snprintf(name, sizeof name, "%.*s", (int)length, word);
        int signal = number_of(name);
        if (signal == 0)
            return no_such_signal(name);
        if (signal == SIGKILL || signal == SIGSTOP || signal == SIGCHLD)
            return FAIL(STATUS_INVALID, "--signals-to-handle: %s cannot be handled", name);
        sigaddset(&which, signal);
    }
    *out = which;
    return STATUS_OK;
}

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
        return FAIL(STATUS_IO, "signalfd: %s", file_limit_reason(errno));
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

bool stop_signals_are_one(int64_t first_ns, int64_t second_ns)
{
    return second_ns - first_ns < ONE_WISH_NS;
}

bool stop_signals_came(stop_signals *signals)
{
    while (stop_signals_next(signals) != 0) {
    }
    return signals->first != 0;
}

int stop_signals_watch_blocked(void)
{
    sigset_t watched, blocked;
    sigemptyset(&watched);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGHUP);
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    sigandset(&watched, &watched, &blocked);
    return signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
}
