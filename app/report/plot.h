/* Plots, drawn by gnuplot if it is installed. The script is written here, part by part; the words
 * that style a plot are gnuplot's own. */
#ifndef MNIST_DDP_APP_REPORT_PLOT_H
#define MNIST_DDP_APP_REPORT_PLOT_H

#include "base/text.h"

#include <jansson.h>
#include <stdbool.h>

/* Is there a gnuplot in $PATH? */
bool plot_is_possible(void);

/* A plot that is being written. */
typedef struct plot_writer {
    text_stream settings, command; /* the command refers to the data, which stand before it */
    int blocks, curves;
} plot_writer;

typedef struct plot_labels {
    const char *title, *x, *y; /* x NULL: the axis says enough */
} plot_labels;

/* STATUS_NO_MEMORY; then there is nothing to close. */
status plot_open(plot_writer *p, const plot_labels *labels);

/* A setting in gnuplot's words: "set logscale y". Before the first curve. */
void plot_set(plot_writer *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A curve: the words that follow its data in gnuplot's plot command, as "using 1:2 with lines". The
 * points that follow are its own. */
void plot_curve(plot_writer *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* One point of the last curve: its columns. */
void plot_point(plot_writer *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Ends it and draws it into `folder`, unless it has no curve. The document (app/report/report.h)
 * gets the plot, or a note that says why there is none, as without gnuplot. */
void plot_finish(plot_writer *p, json_t *document, const char *folder, const char *name,
                 const char *caption);

/* Draws `folder`/`name`.svg and .png. `script` is gnuplot's and sets neither terminal nor output.
 * It stays as `name`.gp, to be drawn again. STATUS_INVALID with gnuplot's own words, STATUS_IO; the
 * images of before then stay as they were. */
status plot_draw(const char *folder, const char *name, const char *script);

/* Text as a gnuplot string in double quotes, without the letters that would format it; cut to fit.
 */
void plot_quote(const char *text, char *out, size_t size_bytes);

#endif
