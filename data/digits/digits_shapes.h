/* The ways to write the ten digits: the strokes before random changes. */
#ifndef MNIST_DDP_DATA_DIGITS_DIGITS_SHAPES_H
#define MNIST_DDP_DATA_DIGITS_DIGITS_SHAPES_H

#include <stdint.h>

enum { DIGITS_MAX_KNOTS = 18 };

typedef enum digits_knot_kind {
    DIGITS_KNOT_GO,   /* the pen runs through smoothly */
    DIGITS_KNOT_TURN, /* a corner */
    DIGITS_KNOT_LIFT, /* the end of a stroke */
} digits_knot_kind;

/* A point that the pen passes, in heights of the digit, which lies in 0 ... 1; y grows downwards.
 */
typedef struct digits_knot {
    float x, y;
    digits_knot_kind kind;
} digits_knot;

/* Sets `knots` (DIGITS_MAX_KNOTS) to one of the digit's shapes, by its share, and returns their
 * number; the last one is a LIFT, and each stroke has at least two. `digit` < 10; `draw` is any 32
 * random bits. */
int digits_shapes_pick(int digit, uint32_t draw, digits_knot *knots);

#endif
