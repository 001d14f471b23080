/* What a command leaves behind: one JSON document. Its part "report" is what people read: lines of
 * text, tables (app/report/table.h) and plots. app/report/page.h shows it in a browser,
 * report_print on a terminal. The other parts are the command's own figures.
 *
 * Nothing here knows what was measured: a benchmark uses it, and a training run can.
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

#endif
