/* What the launcher says when a rank failed. */
#ifndef MNIST_DDP_APP_LAUNCH_FAILURE_REPORT_H
#define MNIST_DDP_APP_LAUNCH_FAILURE_REPORT_H

#include "app/launch/process_failure.h"
#include "app/launch/worker_group.h"

typedef struct failure_report {
    const process_failure *cause;
    const shutdown_policy *policy;
    int restart, max_restarts; /* all ranks are started again, the `restart`th time; 0: they are not
                                */
    bool elsewhere;            /* it happened on another node */
    const char *hang;          /* what the ranks' notes say: lines, or "" */
} failure_report;

/* Sets *out to the report, several lines; free with free(). */
status failure_report_create(const failure_report *report, char **out);

/* One line: what happened on another node, whose launcher has the report. */
void failure_report_line(const failure_report *report, char *out, size_t size_bytes);

/* What became of the other ranks of the worker group, as lines of the report; free with free(). NULL: no
 * memory. */
char *failure_report_others(const worker_group *group);

#endif
