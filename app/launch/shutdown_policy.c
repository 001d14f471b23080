#include "app/launch/shutdown_policy.h"

#include "app/common/exit_codes.h"
#include "app/options/nearest.h"
#include "base/comma_list.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 24, SHOWN_BYTES = 60 };

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

static status read_signals(const char *text, shutdown_policy *policy)
{
    sigemptyset(&policy->signals);
    if (strlen(text) >= sizeof policy->signal_names)
        return FAIL(STATUS_INVALID, "--signals-to-handle: longer than %zu letters",
                    sizeof policy->signal_names - 1);
    strcpy(policy->signal_names, text);
    size_t length;
    for (const char *at = text, *word; (word = comma_list_next(&at, &length)) != NULL;) {
        char name[NAME_BYTES * 4];
        snprintf(name, sizeof name, "%.*s", (int)length, word);
        int signal = number_of(name);
        if (signal == 0)
            return no_such_signal(name);
        if (signal == SIGKILL || signal == SIGSTOP || signal == SIGCHLD)
            return FAIL(STATUS_INVALID, "--signals-to-handle: %s cannot be handled", name);
        sigaddset(&policy->signals, signal);
    }
    return STATUS_OK;
}

/* As torchrun: the flag, else the variable, else 30 s. */
static int64_t shutdown_ms(const options *opts)
{
    const char *text = getenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
    if (opts->shutdown_timeout >= 0)
        return opts->shutdown_timeout * 1000;
    if (text == NULL || text[0] < '0' || text[0] > '9')
        return SHUTDOWN_TIMEOUT_S * 1000;
    char *end = NULL;
    errno = 0;
    long seconds = strtol(text, &end, 10);
    return errno == 0 && *end == '\0' && seconds <= 604800 ? (int64_t)seconds * 1000
                                                           : SHUTDOWN_TIMEOUT_S * 1000;
}

status shutdown_policy_make(const options *opts, shutdown_policy *out)
{
    shutdown_policy policy = {.own = opts->command != COMMAND_RUN,
                              .listens = opts->command == COMMAND_TRAIN,
                              .torchrun_code = strcmp(opts->exit_code, "torchrun") == 0};
    TRY(read_signals(opts->signals_to_handle, &policy));
    policy.save_ms = shutdown_ms(opts);
    policy.stop_ms = policy.own ? SHUTDOWN_STOP_MS : policy.save_ms;
    policy.signal_ms = policy.own ? SHUTDOWN_SIGNAL_MS : policy.save_ms;
    if (policy.own)
        sigaddset(&policy.signals, SIGUSR1);
    *out = policy;
    return STATUS_OK;
}

bool shutdown_policy_saves(const shutdown_policy *policy, int signal)
{
    return policy->listens && (signal == SIGTERM || signal == SIGUSR1);
}

bool shutdown_policy_mendable(const shutdown_policy *policy, int code)
{
    return !policy->own || (code != EXIT_CODE_USAGE && code != EXIT_CODE_DATA &&
                            code != EXIT_CODE_CHECKPOINT && code != EXIT_CODE_PREEMPTED);
}
