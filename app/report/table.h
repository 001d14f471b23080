/* A table: named columns, and rows of text under them. It is JSON, so that it can stand in a
 * document: {"title", "columns": [...], "rows": [{"cells": [...], "note"}]}. */
#ifndef MNIST_DDP_APP_REPORT_TABLE_H
#define MNIST_DDP_APP_REPORT_TABLE_H

#include <jansson.h>
#include <stdio.h>

/* `columns` ends with NULL. json_decref it. */
json_t *table_create(const char *title, const char *const *columns);

/* Begins a row. The functions below fill the last row, its cells from left to right. Cells that are
 * not filled are empty. */
void table_row(json_t *table);
void table_cell(json_t *table, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void table_number(json_t *table, double value);              /* as many digits as help; NAN: "" */
void table_interval(json_t *table, double low, double high); /* "1.2 to 3"; NAN: "n too small" */
void table_note(json_t *table, const char *note);            /* a sentence below the row */

/* "" for what is no text: in a document of another one, anything may stand. */
const char *table_text(const json_t *value);

/* Prints it with a blank line before it. Heads are broken between words, so that a column is as
 * wide as its cells; numbers stand at its right. Titles and notes fit 80 columns. */
void table_print(const json_t *table, FILE *out);

#endif
