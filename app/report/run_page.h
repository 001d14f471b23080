/* report.html of one run, or of several overlaid: curves, phases, what was learned, settings and
 * machine. */
#ifndef MNIST_DDP_APP_REPORT_RUN_PAGE_H
#define MNIST_DDP_APP_REPORT_RUN_PAGE_H

#include "base/status.h"

enum { RUN_PAGE_MAX = 8 }; /* runs on one page: each has a colour */

/* Writes the page of these folders to `path`, whole or not at all. STATUS_INVALID if one is no
 * folder of a run (run_data_read), or for more than RUN_PAGE_MAX. */
status run_page_write(const char *path, const char *const *folders, int n);

#endif
