/* A panel of activations, up to 64 x 64, as the first operand of a linear layer's products, without
 * what most of it is: zeros after a relu, a pool or dropout, or the background of a picture. With
 * x0 that value and sums over k,
 *
 *     sum of x[k] w[k]  =  sum of (x[k] - x0) w[k] where x[k] is not x0  +  x0 (sum of w[k])
 *
 * If x0 is 0, the result has the bits of the sum over all k: what is left out are zeros, and the
 * rest is added in the same order. The last term is computed in any case: it carries what is
 * infinite or not a number in w.
 */
#ifndef MNIST_DDP_KERNELS_CPU_SPARSE_PANEL_H
#define MNIST_DDP_KERNELS_CPU_SPARSE_PANEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SPARSE_SIDE = 64, /* rows, and columns, at most */
    /* Of 4096 elements this many may be other than x0. Beyond, the product of a dense matrix takes
     * less time: a term of it takes some two fifths of the time. */
    SPARSE_MOST = 1600,
    SPARSE_SLACK = 16, /* a vector may be written behind the last element of a list */
};

typedef struct sparse_panel {
    int rows, columns;        /* rows 0: there are no lists */
    float background;         /* x0 */
    int16_t end[SPARSE_SIDE]; /* of each row's list; the next row's begins there */
    uint8_t column[SPARSE_MOST + SPARSE_SLACK];
    float value[SPARSE_MOST + SPARSE_SLACK]; /* less x0 */
} sparse_panel;

#endif
