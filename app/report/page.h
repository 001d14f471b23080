/* A page that needs nothing else: its data as JSON, and the program of app/report/page/, which
 * draws them in the browser. Whoever has no JavaScript reads the text that a terminal shows. */
#ifndef MNIST_DDP_APP_REPORT_PAGE_H
#define MNIST_DDP_APP_REPORT_PAGE_H

#include "base/status.h"

#include <jansson.h>
#include <stdio.h>

/* Prints the page's data for a terminal of 80 columns. */
typedef void page_text_fn(const json_t *data, FILE *out);

/* Writes `path`, whole or not at all. `data` is {"kind", "title", ...}; its kinds are those of
 * app/report/page/main.js. No text in it can end the script that holds it. STATUS_NO_MEMORY if it
 * is NULL; STATUS_IO. */
status page_save(const char *path, const json_t *data, page_text_fn *text);

/* FOLDER/report.html: shows those of the documents (app/report/report.h) that are in `folder`.
 * `documents`: file names in the order of the page; the list ends with NULL. STATUS_INVALID for a
 * file that is no document. */
status page_write(const char *folder, const char *title, const char *const *documents);

#endif
