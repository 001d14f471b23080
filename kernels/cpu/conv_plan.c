#include "kernels/cpu/conv_plan.h"

#include "base/memory.h"

#include <string.h>

status conv_plan_open(conv_plan *p, int pieces)
{
    p->out_h = p->s.height - p->s.kernel + 1;
    p->out_w = p->s.width - p->s.kernel + 1;
    p->x_elements = (size_t)(p->s.channels * p->s.height * p->s.width);
    p->y_elements = (size_t)(p->s.out_channels * p->out_h * p->out_w);
    p->partial_floats = conv_weights(p) + (size_t)p->s.out_channels;
    size_t size_bytes = sizeof *p->partial * p->partial_floats * (size_t)pieces;
    TRY(memory_alloc(size_bytes, (void **)&p->partial));
    device_note_memory(p->cpu->dev, (int64_t)size_bytes); /* a plan lives as long as its network */
    return STATUS_OK;
}

void conv_sum_partial(const conv_plan *p, int pieces, const param_gradients *out)
{
    size_t weights = conv_weights(p), biases = (size_t)p->s.out_channels;
    if (!out->accumulate) {
        memset(out->dw, 0, sizeof *out->dw * weights);
        memset(out->db, 0, sizeof *out->db * biases);
    }
    for (int piece = 0; piece < pieces; piece++) {
        const float *partial = p->partial + (size_t)piece * p->partial_floats;
        p->cpu->vec->add(out->dw, partial, weights);
        p->cpu->vec->add(out->db, partial + weights, biases);
    }
}
