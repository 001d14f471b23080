/* What the launcher says when a rank failed. */
#ifndef MNIST_DDP_APP_LAUNCH_REPORT_H
#define MNIST_DDP_APP_LAUNCH_REPORT_H

#include "app/launch/launch_ending.h"
#include "app/launch/launch_gang.h"

typedef struct launch_report {
    const launch_ending *cause;
    const launch_rules *rules;
    int restart, max_restarts; /* all ranks are started again, the `restart`th time; 0: they are not
                                */
    bool elsewhere;            /* it happened on another node */
    const char *hang;          /* what the ranks' notes say: lines, or "" */
} launch_report;

/* Sets *out to the report, several lines; free with free(). */
status launch_report_create(const launch_report *report, char **out);

/* One line: what happened on another node, whose launcher has the report. */
void launch_report_line(const launch_report *report, char *out, size_t size_bytes);

/* What became of the other ranks of the gang, as lines of the report; free with free(). NULL: no
 * memory. */
char *launch_report_others(const launch_gang *gang);

#endif
