/* What a benchmark leaves behind: one JSON document. Its part "report" is what people read: lines
 * of text, tables and plots. report_print shows it on a terminal, a page in a browser. The other
 * parts are the command's own figures.
 *
 * Nothing here knows what was measured. A training run's page is run_page.h's.
 * If jansson runs out of memory, that is noticed when the document is written.
 */
#ifndef MNIST_DDP_APP_REPORT_REPORT_H
#define MNIST_DDP_APP_REPORT_REPORT_H

#include "base/status.h"

#include <jansson.h>
#include <stdio.h>

typedef struct report_head {
    const char *kind, *name; /* the document's first entry: "benchmark": "scaling" */
    const char *title;
    int argc;
    char **argv; /* the whole command line, for the record */
} report_head;

/* A new document: kind, version, start time, command line, machine, and an empty report.
 * json_decref it. */
json_t *report_create(const report_head *head);

typedef enum report_part {
    REPORT_SUMMARY, /* what was found */
    REPORT_NOTES,   /* what was left out, and what went wrong */
    REPORT_LIMITS,  /* what the figures do not say */
} report_part;

/* Adds a line of text, if it is not there. */
void report_say(json_t *document, report_part part, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds a table and returns it; it belongs to the document. `columns` ends with NULL. */
json_t *report_table(json_t *document, const char *title, const char *const *columns);

/* Adds a plot and returns it; it belongs to the document, as does what is added to it. Its other
 * keys, and a series', are those of docs/bench-json.md. */
json_t *report_plot(json_t *document, const char *name, const char *caption);

/* Adds a curve, or one part of all bars, and returns it. Its "points" are an empty array. */
json_t *report_series(json_t *plot, const char *name);

/* A real rounded to `digits` significant ones, or null if it is not known (NAN). */
json_t *report_number(double value, int digits);
void report_set_number(json_t *object, const char *key, double value, int digits);

/* Prints the title, the tables, the summary and the notes, for a terminal of 80 columns. */
void report_print(const json_t *document, FILE *out);

/* Makes the folder and replaces its file `name`. */
status report_write(const json_t *document, const char *folder, const char *name);

/* A table: named columns, and rows of text under them. It is JSON, so that it can stand in a
 * document: {"title", "columns": [...], "rows": [{"cells": [...], "note"}]}. */

/* `columns` ends with NULL. json_decref it. */
json_t *table_create(const char *title, const char *const *columns);

/* Begins a row. The functions below fill the last row, its cells from left to right. Cells that are
 * not filled are empty. */
void table_row(json_t *table);
void table_cell(json_t *table, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void table_number(json_t *table, double value);              /* as many digits as help; NAN: "" */
void table_interval(json_t *table, double low, double high); /* "1.2 to 3"; NAN: "n too small" */
void table_note(json_t *table, const char *note);            /* a sentence below the row */

/* Prints it with a blank line before it. Heads are broken between words, so that a column is as
 * wide as its cells; numbers stand at its right. Titles and notes fit 80 columns. */
void table_print(const json_t *table, FILE *out);

/* A page needs nothing else: its data as JSON, and the program of app/report/page/, which draws
 * them in the browser. Whoever has no JavaScript reads the text that a terminal shows. */

/* Prints the page's data for a terminal of 80 columns. */
typedef void page_text_fn(const json_t *data, FILE *out);

/* Writes `path`, whole or not at all. `data` is {"kind", "title", ...}; its kinds are those of
 * app/report/page/main.js. No text in it can end the script that holds it. STATUS_NO_MEMORY if it
 * is NULL; STATUS_IO. */
status page_write(const char *path, const json_t *data, page_text_fn *text);

/* FOLDER/report.html: shows those of the documents that are in `folder`. `documents`: file names in
 * the order of the page; the list ends with NULL. STATUS_INVALID for a file that is no document. */
status documents_page_write(const char *folder, const char *title, const char *const *documents);

#endif
