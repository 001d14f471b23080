/* What the launcher does when it is told to stop, and how long it waits for its workers then. */
#ifndef MNIST_DDP_APP_LAUNCH_SHUTDOWN_POLICY_H
#define MNIST_DDP_APP_LAUNCH_SHUTDOWN_POLICY_H

#include "app/options/options.h"
#include "base/status.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    SHUTDOWN_GRACE_MS = 300,   /* after a failure: survivors may say themselves what they saw */
    SHUTDOWN_STOP_MS = 2000,   /* then our own workers get SIGTERM; this much later SIGKILL */
    SHUTDOWN_SIGNAL_MS = 5000, /* the same after a signal to the launcher */
    SHUTDOWN_TIMEOUT_S = 30, /* torchrun's: for any program's workers, and for a last checkpoint */
    SHUTDOWN_SIGNALS_BYTES = 160,
};

typedef struct shutdown_policy {
    bool own;         /* the workers are this program's `train` or `bench` */
    bool listens;     /* they are `train`: SIGUSR1 asks them for a checkpoint, and they come to
                       * listen to it (app/train/rank_signals.h) */
    sigset_t signals; /* that stop the workers, where they were not ignored at the start */
    char signal_names[SHUTDOWN_SIGNALS_BYTES];
    int64_t stop_ms;    /* after a failure: from SIGTERM to SIGKILL */
    int64_t signal_ms;  /* after a signal to the launcher, likewise */
    int64_t save_ms;    /* of `listens`: from SIGUSR1 (write a checkpoint and end) to SIGTERM */
    bool torchrun_code; /* exit with 1 after any failure */
} shutdown_policy;

/* From the flags of `train` or `run`. STATUS_INVALID for a signal that does not exist or cannot be
 * handled. */
status shutdown_policy_make(const options *opts, shutdown_policy *out);

/* Whether this signal asks workers of ours for a checkpoint, before they end. */
bool shutdown_policy_saves(const shutdown_policy *policy, int signal);

/* Whether to start all workers again may help after one of them ended with this exit code (128 +
 * signal): wrong flags, unreadable data or a run folder that is taken stay as they are. */
bool shutdown_policy_mendable(const shutdown_policy *policy, int code);

#endif
