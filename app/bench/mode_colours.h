/* A mode has one colour in all plots. They are told apart without colours too, by points and
 * dashes.
 */
#ifndef MNIST_DDP_APP_BENCH_MODE_COLOURS_H
#define MNIST_DDP_APP_BENCH_MODE_COLOURS_H

#include "app/train/strategy.h"

extern const char *const mode_colours[STRATEGY_COUNT]; /* "#1b6ca8" */

#endif
