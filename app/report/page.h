/* FOLDER/report.html: documents of a folder (app/report/report.h) on one HTML page that needs
 * nothing else: no network, no script, the plots in it. */
#ifndef MNIST_DDP_APP_REPORT_PAGE_H
#define MNIST_DDP_APP_REPORT_PAGE_H

#include "base/status.h"

/* Shows those of the documents that are in `folder`, with their .svg plots. `documents`: file names
 * in the order of the page; the list ends with NULL. STATUS_INVALID for a file that is no document.
 */
status page_write(const char *folder, const char *title, const char *const *documents);

#endif
