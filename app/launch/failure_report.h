/* What the agent says of a failure. */
#ifndef MNIST_DDP_APP_LAUNCH_FAILURE_REPORT_H
#define MNIST_DDP_APP_LAUNCH_FAILURE_REPORT_H

#include "app/launch/group_outcome.h"
#include "app/launch/output.h"

typedef struct failure_report {
    const worker_spec *spec;
    const node_report *own;
    const group_outcome *outcome;
} failure_report;

/* Says on stderr why the attempt has failed, if it has. The agent of the worker that failed first,
 * and node 0's, show it whole; the others one line. Also writes that worker's error.json, if it is
 * of this node; and after the last attempt this launcher's own, to $TORCHELASTIC_ERROR_FILE, which
 * whoever has started it reads. */
void failure_report_show(const failure_report *report, output_console *console);

/* Says this thread's message, why the launcher itself has failed, there and on stderr. */
void failure_report_own(status st, int code);

#endif
