/* Winograd's minimal filtering F(4x4, 3x3): a tile of 4x4 outputs of a 3x3 convolution from its 6x6
 * inputs with 36 multiplications for each pair of channels instead of 144 (Lavin and Gray, "Fast
 * Algorithms for Convolutional Neural Networks", 2016).
 *
 * With inputs d, outputs y, weights g and the element-wise product *,
 *
 *     forward        y  = At ((G g Gt) * (Bt d B)) A
 *     backward data  dd = B ((G g Gt) * (A dy At)) Bt
 *     weights        dg = Gt ((Bt d B) * (A dy At)) G
 *
 * where t transposes. The backward transforms are the adjoints of the forward ones, so a tile has
 * 36 products in each direction, and A dy At serves both. Summed over channels or tiles, each of
 * the 36 positions is a product of matrices.
 *
 * The points of evaluation are 0, +-P, +-Q and infinity with P = 5/8 and Q = 3/2, whose rounding
 * errors are half as large as those of 0, +-1, +-2. They are exact in binary, and so are their
 * products below.
 *
 * A tile's elements are vectors of BLOCK channels.
 */
#ifndef MNIST_DDP_KERNELS_CPU_WINOGRAD_H
#define MNIST_DDP_KERNELS_CPU_WINOGRAD_H

#include "kernels/cpu/operand.h"

#include <stddef.h>

enum {
    TILE_OUT = 4,                  /* side of the outputs of a tile */
    TILE_IN = 6,                   /* of its inputs */
    POSITIONS = TILE_IN * TILE_IN, /* of a transformed tile */
    TAPS = 9,                      /* of a 3x3 filter */
};

#define P 0.625f
#define Q 1.5f
#define PP (P * P)
#define QQ (Q * Q)

/* G: the values of a filter, as a polynomial, at the points, divided by the Lagrange
 * denominators. */
#define AT_P (1 / (2 * PP * (PP - QQ)))
#define AT_Q (1 / (2 * QQ * (QQ - PP)))
static const float winograd_g[TILE_IN][3] = {
    {1 / (PP * QQ), 0, 0},     {AT_P, P *AT_P, PP *AT_P},  {AT_P, -P *AT_P, PP *AT_P},
    {AT_Q, Q *AT_Q, QQ *AT_Q}, {AT_Q, -Q *AT_Q, QQ *AT_Q}, {0, 0, 1},
};

/* Bt d for one column or row. */
INLINE void winograd_input_1d(const vec *d, vec *out)
{
    vec even_p = d[4] - QQ * d[2], odd_p = d[3] - QQ * d[1];
    vec even_q = d[4] - PP * d[2], odd_q = d[3] - PP * d[1];
    out[0] = PP * QQ * d[0] + (d[4] - (PP + QQ) * d[2]);
    out[1] = even_p + P * odd_p;
    out[2] = even_p - P * odd_p;
    out[3] = even_q + Q * odd_q;
    out[4] = even_q - Q * odd_q;
    out[5] = PP * QQ * d[1] + (d[5] - (PP + QQ) * d[3]);
}

/* B v, its adjoint. */
INLINE void winograd_input_adjoint_1d(const vec *v, vec *out)
{
    vec even_p = v[1] + v[2], odd_p = v[1] - v[2], even_q = v[3] + v[4], odd_q = v[3] - v[4];
    out[0] = PP * QQ * v[0];
    out[1] = PP * QQ * v[5] - P * QQ * odd_p - Q * PP * odd_q;
    out[2] = -(PP + QQ) * v[0] - QQ * even_p - PP * even_q;
    out[3] = P * odd_p + (Q * odd_q - (PP + QQ) * v[5]);
    out[4] = v[0] + even_p + even_q;
    out[5] = v[5];
}

/* At m. */
INLINE void winograd_output_1d(const vec *m, vec *out)
{
    vec even_p = m[1] + m[2], odd_p = m[1] - m[2], even_q = m[3] + m[4], odd_q = m[3] - m[4];
    out[0] = m[0] + even_p + even_q;
    out[1] = P * odd_p + Q * odd_q;
    out[2] = PP * even_p + QQ * even_q;
    out[3] = P * PP * odd_p + (Q * QQ * odd_q + m[5]);
}

/* A y, its adjoint. */
INLINE void winograd_output_adjoint_1d(const vec *y, vec *out)
{
    vec even_p = y[0] + PP * y[2], odd_p = y[1] + PP * y[3];
    vec even_q = y[0] + QQ * y[2], odd_q = y[1] + QQ * y[3];
    out[0] = y[0];
    out[1] = even_p + P * odd_p;
    out[2] = even_p - P * odd_p;
    out[3] = even_q + Q * odd_q;
    out[4] = even_q - Q * odd_q;
    out[5] = y[3];
}

/* The 2-D transforms: columns first, then rows. Element (row, column) of the inputs is at row *
 * x_row + column * BLOCK, element `position` of a transformed tile at position * step. What a
 * product reads is written as operands (kernels/cpu/operand.h) from index `at` on. */
typedef struct tile_to {
    float *array;
    int at, step;
    precision how;
} tile_to;

INLINE void winograd_input(const float *from, int x_row, const tile_to *to)
{
    vec half[TILE_IN][TILE_IN];
    for (int c = 0; c < TILE_IN; c++) {
        vec column[TILE_IN], out[TILE_IN];
        for (int r = 0; r < TILE_IN; r++)
            column[r] = load(from + r * x_row + c * BLOCK);
        winograd_input_1d(column, out);
        for (int r = 0; r < TILE_IN; r++)
            half[r][c] = out[r];
    }
    for (int r = 0; r < TILE_IN; r++) {
        vec out[TILE_IN];
        winograd_input_1d(half[r], out);
        for (int c = 0; c < TILE_IN; c++)
            store_operand(to->array, to->at + (r * TILE_IN + c) * to->step, out[c], to->how);
    }
}

/* Adds to what `to` holds: tiles overlap. */
INLINE void winograd_input_adjoint(const float *from, int step, float *to, int x_row)
{
    vec half[TILE_IN][TILE_IN];
    for (int c = 0; c < TILE_IN; c++) {
        vec column[TILE_IN], out[TILE_IN];
        for (int r = 0; r < TILE_IN; r++)
            column[r] = load(from + (r * TILE_IN + c) * step);
        winograd_input_adjoint_1d(column, out);
        for (int r = 0; r < TILE_IN; r++)
            half[r][c] = out[r];
    }
    for (int r = 0; r < TILE_IN; r++) {
        vec out[TILE_IN];
        winograd_input_adjoint_1d(half[r], out);
        for (int c = 0; c < TILE_IN; c++) {
            float *at = to + r * x_row + c * BLOCK;
            store(at, load(at) + out[c]);
        }
    }
}

INLINE void winograd_output(const float *from, int step, vec out[TILE_OUT][TILE_OUT])
{
    vec half[TILE_OUT][TILE_IN];
    for (int c = 0; c < TILE_IN; c++) {
        vec column[TILE_IN], rows[TILE_OUT];
        for (int r = 0; r < TILE_IN; r++)
            column[r] = load(from + (r * TILE_IN + c) * step);
        winograd_output_1d(column, rows);
        for (int r = 0; r < TILE_OUT; r++)
            half[r][c] = rows[r];
    }
    for (int r = 0; r < TILE_OUT; r++)
        winograd_output_1d(half[r], out[r]);
}

INLINE void winograd_output_adjoint(vec in[TILE_OUT][TILE_OUT], const tile_to *to)
{
    vec half[TILE_IN][TILE_OUT];
    for (int c = 0; c < TILE_OUT; c++) {
        vec column[TILE_OUT], out[TILE_IN];
        for (int r = 0; r < TILE_OUT; r++)
            column[r] = in[r][c];
        winograd_output_adjoint_1d(column, out);
        for (int r = 0; r < TILE_IN; r++)
            half[r][c] = out[r];
    }
    for (int r = 0; r < TILE_IN; r++) {
        vec out[TILE_IN];
        winograd_output_adjoint_1d(half[r], out);
        for (int c = 0; c < TILE_IN; c++)
            store_operand(to->array, to->at + (r * TILE_IN + c) * to->step, out[c], to->how);
    }
}

/* Taps at tap * from_step to positions at position * to_step: G g Gt. */
INLINE void winograd_weights(const float *from, int from_step, float *to, int to_step)
{
    vec half[TILE_IN][3];
    for (int c = 0; c < 3; c++)
        for (int r = 0; r < TILE_IN; r++) {
            const float *g = winograd_g[r];
            half[r][c] = g[0] * load(from + c * from_step) +
                         g[1] * load(from + (3 + c) * from_step) +
                         g[2] * load(from + (6 + c) * from_step);
        }
    for (int r = 0; r < TILE_IN; r++)
        for (int c = 0; c < TILE_IN; c++) {
            const float *g = winograd_g[c];
            store(to + (r * TILE_IN + c) * to_step,
                  g[0] * half[r][0] + g[1] * half[r][1] + g[2] * half[r][2]);
        }
}

/* Gt u G, its adjoint; adds to what `to` holds if `add`. */
INLINE void winograd_weights_adjoint(const float *from, int from_step, float *to, int to_step,
                                     bool add)
{
    vec half[3][TILE_IN];
    for (int c = 0; c < TILE_IN; c++)
        for (int tap = 0; tap < 3; tap++) {
            vec sum = {0};
            for (int r = 0; r < TILE_IN; r++)
                sum += winograd_g[r][tap] * load(from + (r * TILE_IN + c) * from_step);
            half[tap][c] = sum;
        }
    for (int r = 0; r < 3; r++)
        for (int tap = 0; tap < 3; tap++) {
            vec sum = {0};
            for (int c = 0; c < TILE_IN; c++)
                sum += winograd_g[c][tap] * half[r][c];
            float *at = to + (3 * r + tap) * to_step;
            store(at, add ? load(at) + sum : sum);
        }
}

#undef P
#undef Q
#undef PP
#undef QQ
#undef AT_P
#undef AT_Q

#endif
