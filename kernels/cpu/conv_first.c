#include "kernels/cpu/conv2d.h"

#include <string.h>

enum { IMAGES = 8 }; /* of one piece */

static int pieces_of(int n)
{
    return (n + IMAGES - 1) / IMAGES;
}

status conv_first_init(conv_plan *p, int max_n)
{
    return conv_plan_open(p, pieces_of(max_n));
}

/* PyTorch's (O, 1, 3, 3) to and from (9, O): the output channels of one tap side by side. */
void conv_first_order(const conv_plan *p, const float *from, float *to, bool import)
{
    int channels = p->s.out_channels;
    for (int o = 0; o < channels; o++)
        for (int k = 0; k < CONV_TAPS; k++) {
            int plain = o * CONV_TAPS + k, ours = k * channels + o;
            to[import ? ours : plain] = from[import ? plain : ours];
        }
}

typedef struct first_job {
    conv_plan *p;
    int n;
    const float *x, *weight, *bias, *y, *dy;
    float *y_out;
} first_job;

static int piece_end(const first_job *job, int piece)
{
    int end = (piece + 1) * IMAGES;
    return end < job->n ? end : job->n;
}

static void forward_piece(void *arg, int piece)
{
    const first_job *job = arg;
    const conv_plan *p = job->p;
    for (int i = piece * IMAGES; i < piece_end(job, piece); i++)
        p->cpu->vec->conv_first_forward(&p->s, job->x + (size_t)i * p->x_elements, job->weight,
                                        job->bias, job->y_out + (size_t)i * p->y_elements);
}

void conv_first_forward(conv_plan *p, int n, const float *x, const float *weight, const float *bias,
                        float *y)
{
    first_job job = {.p = p, .n = n, .x = x, .weight = weight, .bias = bias, .y_out = y};
    team_run(p->cpu->team, forward_piece, &job, pieces_of(n));
}

static void backward_piece(void *arg, int piece)
{
    const first_job *job = arg;
    const conv_plan *p = job->p;
    float *partial = p->partial + (size_t)piece * p->partial_floats;
    memset(partial, 0, sizeof *partial * p->partial_floats);
    for (int i = piece * IMAGES; i < piece_end(job, piece); i++)
        p->cpu->vec->conv_first_backward(
            &p->s, job->x + (size_t)i * p->x_elements, job->y + (size_t)i * p->y_elements,
            job->dy + (size_t)i * p->y_elements, partial, partial + conv_weights(p));
}

void conv_first_backward_weights(conv_plan *p, int n, const float *x, const float *y,
                                 const float *dy, const param_gradients *out)
{
    first_job job = {.p = p, .n = n, .x = x, .y = y, .dy = dy};
    team_run(p->cpu->team, backward_piece, &job, pieces_of(n));
    conv_sum_partial(p, pieces_of(n), out);
}
