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

/* Writes a copy of a page with a script behind it. */
void browser_probe(const char *path, const char *script, const char *probed);

/* Opens copies of the pages, each with the program behind it, in windows of 400 and 1,400 pixels,
 * light and dark. stdout has what each posts to the page around it: "seen: ...". Fails the test if
 * one complains. */
enum { BROWSER_WINDOWS = 4 };
program browser_windows(const char *const *pages, int n, const char *probe);

/* Fails the test if one of the pages is wider than such a window, or has a text that is hard to
 * read there (looks.js). */
void browser_check_looks(const char *const *pages, int n);

/* The same of a page in the test's folder. Fails the test if it does not end well, or if the page
 * complains. */
program browser_run(const char *name, int width);

/* What such a page shows: its DOM without its scripts, the caller's to free; NULL if there is no
 * browser. Fails the test if the page's program complains. */
char *browser_shows(const char *name, int width);

/* The data of the page in `text` (app/report/report.h), for json_decref; fails the test if it is no
 * JSON, if it can end its script, or if the page needs anything else. */
json_t *browser_data(const char *text);

#endif
