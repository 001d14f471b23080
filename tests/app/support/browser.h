/* A page in a headless browser, for the tests of pages. */
#ifndef MNIST_DDP_TESTS_APP_SUPPORT_BROWSER_H
#define MNIST_DDP_TESTS_APP_SUPPORT_BROWSER_H

#include "tests/support/program.h"

#include <jansson.h>
#include <stdbool.h>

enum { BROWSER_S = 120 }; /* for one page, at most */

/* Looks for a Chromium; false if there is none. */
bool browser_find(void);

/* Its name; NULL before browser_find, and if there is none. */
const char *browser_name(void);

/* Opens the page at `path` in a window of that width. stdout is its DOM, stderr the console's
 * lines, each with CONSOLE in it. */
program browser_open(const char *path, int width);

/* What the page at `path` shows: its DOM without its scripts, the caller's to free; NULL if there
 * is no browser. Fails the test if the page's program complains. */
char *browser_shows(const char *path, int width);

/* The data of the page in `text` (app/report/report.h), for json_decref; fails the test if it is no
 * JSON, if it can end its script, or if the page needs anything else. */
json_t *browser_data(const char *text);

#endif
