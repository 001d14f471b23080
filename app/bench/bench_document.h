/* What a benchmark leaves behind: one JSON document, DIR/<benchmark>.json. Its part "report" is all
 * that a page needs to show it (bench_report.h): lines of text, tables, plots. The rest of the
 * document are the figures themselves, as docs/bench-json.md describes them.
 *
 * Memory that jansson does not get is noticed when the document is written.
 */
#ifndef MNIST_DDP_APP_BENCH_DOCUMENT_H
#define MNIST_DDP_APP_BENCH_DOCUMENT_H

#include "base/status.h"

#include <jansson.h>
#include <stdio.h>

/* A new document: benchmark, version, start time, command line, machine, and an empty report.
 * json_decref it. */
json_t *bench_document_create(const char *benchmark, const char *title, int argc, char **argv);

typedef enum bench_lines {
    BENCH_SUMMARY, /* what was found */
    BENCH_NOTES,   /* what was left out, and what went wrong */
    BENCH_LIMITS,  /* what the figures do not say */
} bench_lines;

/* Adds a line of text. */
void bench_document_say(json_t *document, bench_lines where, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds a table, borrowed from the document. `columns`: the heads, with '|' between them. */
json_t *bench_document_table(json_t *document, const char *title, const char *columns);

/* Adds a row. `cells`: as many as there are columns, with '|' between them. `note`: a sentence
 * below the row, or NULL. */
void bench_document_row(json_t *table, const char *note, const char *cells);

/* Names a plot that lies in the document's folder as `name`.svg and .png. */
void bench_document_plot(json_t *document, const char *name, const char *caption);

/* A real rounded to `digits` significant ones, or null where it is not known (NAN). */
json_t *bench_document_number(double value, int digits);

/* Prints the summary, the tables and the notes, as wide as they are. */
void bench_document_print(const json_t *document, FILE *out);

/* Makes the folder and replaces its <benchmark>.json. */
status bench_document_write(const json_t *document, const char *folder);

#endif
