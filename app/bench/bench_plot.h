/* Plots by gnuplot, where it is installed. */
#ifndef MNIST_DDP_APP_BENCH_PLOT_H
#define MNIST_DDP_APP_BENCH_PLOT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Is there a gnuplot in $PATH? */
bool bench_plot_is_possible(void);

/* Draws `folder`/`name`.svg and .png. `script` is gnuplot's, with its data in it ($data << EOD); it
 * sets neither terminal nor output. It stays as `name`.gp, to be drawn again. STATUS_INVALID with
 * gnuplot's own words, STATUS_IO; the images of before then stay as they were. */
status bench_plot_draw(const char *folder, const char *name, const char *script);

/* Text as a gnuplot string in double quotes, without the letters that would format it; cut to fit.
 */
void bench_plot_quote(const char *text, char *out, size_t size_bytes);

#endif
