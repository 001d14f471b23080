/* The path of the pen over one digit. */
#ifndef MNIST_DDP_DATA_DIGITS_DIGITS_TRACE_H
#define MNIST_DDP_DATA_DIGITS_DIGITS_TRACE_H

#include "data/digits/digits_random.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DIGITS_MAX_KNOTS = 18, /* of a shape */
    DIGITS_BOX = 20,       /* pixels: the side of the square that a digit's ink just fits */
    DIGITS_SAMPLES = 5,    /* per stretch between two knots */
    DIGITS_MAX_POINTS = DIGITS_MAX_KNOTS * DIGITS_SAMPLES,
};

typedef struct digits_trace {
    int count;
    float x[DIGITS_MAX_POINTS], y[DIGITS_MAX_POINTS]; /* pixels in the box, y downwards */
    float radius[DIGITS_MAX_POINTS];                  /* half the line's width, pixels */
    bool lift[DIGITS_MAX_POINTS];                     /* no ink from here to the next point */
    float edge;                                       /* pixels over which ink fades to paper */
} digits_trace;

/* Writes `digit` (< 10) once, with a hand and a pen drawn from `random`. */
void digits_trace_write(digits_random *random, int digit, digits_trace *trace);

#endif
