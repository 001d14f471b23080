/* A chart of lines as SVG inside a page. Its colours are the page's: CHART_STYLE names them for
 * light and for dark, and a series has one of CHART_COLOURS. */
#ifndef MNIST_DDP_APP_REPORT_CHART_H
#define MNIST_DDP_APP_REPORT_CHART_H

#include <stdbool.h>
#include <stdio.h>

enum { CHART_COLOURS = 8 };

extern const char CHART_STYLE[]; /* CSS */

typedef enum chart_form {
    CHART_LINE, /* a line */
    CHART_DASHED,
    CHART_THIN, /* a faint line, of many points */
    CHART_DOTS, /* a line with a dot for each point, which tells its numbers to the mouse */
} chart_form;

/* One curve; a single point is a dot in any form. A point that has no place breaks the line: whose
 * x or y is not finite or beyond 1e300, or whose y is below 1e-300 on a logarithmic axis. */
typedef struct chart_series {
    const char *name;
    int colour; /* 0 to CHART_COLOURS - 1 */
    chart_form form;
    const double *x, *y; /* (n) */
    int n;
} chart_series;

typedef enum chart_axis {
    CHART_LINEAR,
    CHART_LOG,
    CHART_PERCENT, /* linear: 0.98 is written 98 % */
} chart_axis;

typedef struct chart {
    const char *title, *x_label;
    chart_axis y_axis;
    const chart_series *series; /* (n_series) */
    int n_series;
    const double *marks; /* (n_marks): x of upright lines */
    int n_marks;
} chart;

/* A <figure>; "no data" stands in it if no point can be drawn. */
void chart_write(FILE *out, const chart *c);

#endif
