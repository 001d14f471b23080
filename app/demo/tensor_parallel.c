/* Tensor parallelism: y = relu(x W1) W2, where each rank has some columns of W1 and the same rows
 * of W2. All numbers are small integers, so that every sum is exact. */
#include "app/demo/demo.h"

#include <string.h>

enum { WIDTH = 2, OWN = 2, RANKS_MAX = 4, HIDDEN_MAX = OWN * RANKS_MAX };

typedef struct vector {
    double at[WIDTH];
} vector;

static const vector X = {{1, 2}}, DY = {{1, -1}}; /* on all ranks */

/* Some elements of the hidden layer, with what belongs to them. */
typedef struct part {
    vector w1[HIDDEN_MAX], w2[HIDDEN_MAX]; /* a column of W1, a row of W2 */
    double h[HIDDEN_MAX], dh[HIDDEN_MAX];
    vector y, dx; /* sums over these elements */
} part;

static double dot(const vector *a, const vector *b)
{
    return a->at[0] * b->at[0] + a->at[1] * b->at[1];
}

static void add_times(vector *sum, double factor, const vector *by)
{
    for (int i = 0; i < WIDTH; i++)
        sum->at[i] += factor * by->at[i];
}

/* Forward and backward of elements of the whole layer. */
static part part_of(int first, int n)
{
    part p = {0};
    for (int j = 0; j < n; j++) {
        int k = first + j;
        for (int i = 0; i < WIDTH; i++) {
            p.w1[j].at[i] = (i * 4 + k * 2) % 5 - 2;
            p.w2[j].at[i] = (i * 2 + k * 4 + 1) % 5 - 2;
        }
        double z = dot(&X, &p.w1[j]);
        p.h[j] = z > 0 ? z : 0;
        p.dh[j] = z > 0 ? dot(&DY, &p.w2[j]) : 0;
        add_times(&p.y, p.h[j], &p.w2[j]);
        add_times(&p.dx, p.dh[j], &p.w1[j]);
    }
    return p;
}

static status show_parts(demo *d, const part *p)
{
    const vector *w1 = p->w1, *w2 = p->w2;
    demo_begin(d, "ColwiseParallel and RowwiseParallel");
    demo_say(d,
             "Two layers, y = relu(x W1) W2, are too large for one rank. Each of the %d ranks "
             "gets %d columns of W1, and the %d rows of W2 that these elements meet next.",
             d->world_size, OWN, OWN);
    demo_say(d,
             "A relu looks at one element at a time. So a rank goes through both layers with its "
             "own elements, and sends nothing between them. In PyTorch: parallelize_module("
             "model, mesh, {\"fc1\": ColwiseParallel(), \"fc2\": RowwiseParallel()}).");
    demo_columns(d, "|columns of W1||rows of W2|");
    demo_row(d, "rank %d|%g %g|%g %g|%g %g|%g %g", d->rank, w1[0].at[0], w1[0].at[1], w1[1].at[0],
             w1[1].at[1], w2[0].at[0], w2[0].at[1], w2[1].at[0], w2[1].at[1]);
    return demo_show(d);
}

/* A rank's two elements, its sum over them, and the sum of all ranks, which is set. */
static status show_sum(demo *d, const double elements[OWN], const vector *partial, vector *sum)
{
    *sum = *partial;
    TRY(process_group_all_reduce(d->group, sum->at, WIDTH, DTYPE_F64, REDUCE_SUM, NULL));
    for (int to = 0; to < d->world_size; to++)
        if (to != d->rank)
            demo_arrow(d, d->rank, to, "%g %g", partial->at[0], partial->at[1]);
    demo_row(d, "rank %d|%g %g|%g %g|%g %g", d->rank, elements[0], elements[1], partial->at[0],
             partial->at[1], sum->at[0], sum->at[1]);
    return demo_show(d);
}

static status show_forward(demo *d, const part *p, vector *y)
{
    demo_begin(d, "Forward: partial sums, and one all_reduce");
    demo_say(d,
             "All ranks have the same input, x = %g %g. Each has some elements of the hidden "
             "layer, and multiplies them by its rows of W2. That is a part of every element of y: "
             "what is missing are the terms of the other ranks. One all_reduce adds them up.",
             X.at[0], X.at[1]);
    demo_columns(d, "|h = relu(x W1)|h W2, partial|y, all_reduced");
    return show_sum(d, p->h, &p->y, y);
}

static status show_backward(demo *d, const part *p, vector *dx)
{
    demo_begin(d, "Backward: one more");
    demo_say(d,
             "The gradient of y, here %g %g, is on all ranks, as y is. Each computes the "
             "gradients of its own h, of its rows of W2 and of its columns of W1: no message. "
             "But x went to all ranks, so its gradient is a sum over them: one all_reduce, if "
             "there is a layer before.",
             DY.at[0], DY.at[1]);
    demo_columns(d, "|gradient of x W1|of x, partial|of x, all_reduced");
    return show_sum(d, p->dh, &p->dx, dx);
}

static status show_whole(demo *d, const vector *y, const vector *dx)
{
    const part whole = part_of(0, OWN * d->world_size);
    bool same = memcmp(y, &whole.y, sizeof *y) == 0 && memcmp(dx, &whole.dx, sizeof *dx) == 0;
    demo_begin(d, "The same as on one rank");
    demo_say(d, "Here each rank has computed with all of W1 and W2, too. DDP sends gradients, once "
                "a step, while backward goes on. Tensor parallelism sends activations, in every "
                "pair of layers, and the next layer waits for them: so its ranks are the GPUs of "
                "one machine.");
    demo_columns(d, "|y, whole|gradient of x, whole|same as in parts");
    demo_row(d, "rank %d|%g %g|%g %g|%s", d->rank, whole.y.at[0], whole.y.at[1], whole.dx.at[0],
             whole.dx.at[1], same ? "yes" : "NO");
    demo_fact(d, "y", json_pack("[f, f]", y->at[0], y->at[1]));
    demo_fact(d, "dx", json_pack("[f, f]", dx->at[0], dx->at[1]));
    return demo_show_proof(d, same, "the parts do not add up to the whole");
}

status tensor_parallel_demo(demo *d)
{
    const part own = part_of(OWN * d->rank, OWN);
    vector y, dx;
    TRY(show_parts(d, &own));
    TRY(show_forward(d, &own, &y));
    TRY(show_backward(d, &own, &dx));
    return show_whole(d, &y, &dx);
}
