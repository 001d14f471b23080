/* From a trace to pixels. */
#ifndef MNIST_DDP_DATA_DIGITS_DIGITS_INK_H
#define MNIST_DDP_DATA_DIGITS_DIGITS_INK_H

#include "data/digits/digits_trace.h"

#include <stdint.h>

/* Draws the trace, and moves its ink's centre of mass to the middle of `image` (28, 28; set). */
void digits_ink_draw(const digits_trace *trace, uint8_t *image);

#endif
