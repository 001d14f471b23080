/* What the launcher says when a worker failed. */
#ifndef MNIST_DDP_APP_LAUNCH_REPORT_H
#define MNIST_DDP_APP_LAUNCH_REPORT_H

#include "app/launch/launch_worker.h"

typedef struct launch_report {
    const launch_worker *workers;
    int n_workers;
    int cause; /* index of the worker to blame */
    int64_t started_ns;
    bool memory_killed; /* the kernel's out-of-memory killer was at work during the run */
} launch_report;

/* Sets *out to the report, several lines; free with free(). */
status launch_report_create(const launch_report *report, char **out);

/* "exit code 7", "SIGKILL (Killed)" */
void launch_report_ending(const launch_worker *worker, char *out, size_t size_bytes);

/* What a shell calls it: the exit code, or 128 + signal. */
int launch_report_exit_code(const launch_worker *worker);

/* How many processes the kernel has killed for want of memory since it started; -1 unknown. */
int64_t launch_report_memory_kills(void);

#endif
