#include "kernels/cpu/conv2d.h"

#include "base/memory.h"

#include <stdlib.h>

static conv_plan *plan_of(conv2d *plan)
{
    return (conv_plan *)(void *)plan;
}

/* conv_plan is the first member of conv_onednn. */
static conv_onednn *onednn_of(conv2d *plan)
{
    return (conv_onednn *)(void *)plan;
}

static bool is_first(const conv2d_shape *s)
{
    return s->plain_input;
}

static status check(const conv2d_shape *s, int block)
{
    if (s->kernel != 3 || s->out_channels % block != 0)
        return FAIL(STATUS_INVALID,
                    "cpu device: convolutions are 3x3 with a multiple of %d output "
                    "channels, not %dx%d with %d",
                    block, s->kernel, s->kernel, s->out_channels);
    if (is_first(s) && (s->channels != 1 || !s->relu))
        return FAIL(STATUS_INVALID, "cpu device: a convolution of plain input has one channel and "
                                    "a relu");
    if (!is_first(s) && (s->relu || s->channels % block != 0))
        return FAIL(STATUS_INVALID,
                    "cpu device: a convolution of blocked input has a multiple of "
                    "%d channels and no relu",
                    block);
    return STATUS_OK;
}

status cpu_conv2d_create(device *dev, const conv2d_shape *shape, int max_n, conv2d **out)
{
    TRY(check(shape, cpu_of(dev)->vec->block));
    if (!is_first(shape))
        return conv_onednn_create(dev, shape, max_n, (conv_onednn **)(void *)out);
    conv_plan *p = NULL;
    TRY(memory_alloc(sizeof *p, (void **)&p));
    *p = (conv_plan){.s = *shape, .cpu = cpu_of(dev)};
    status st = conv_first_init(p, max_n);
    if (st != STATUS_OK) {
        free(p);
        return st;
    }
    *out = (conv2d *)(void *)p;
    return STATUS_OK;
}

void cpu_conv2d_destroy(conv2d *plan)
{
    if (plan == NULL)
        return;
    if (!is_first(&plan_of(plan)->s)) {
        conv_onednn_destroy(onednn_of(plan));
        return;
    }
    free(plan_of(plan)->partial);
    free(plan);
}

static status reorder(conv2d *plan, const float *from, float *to, bool import)
{
    const conv_plan *p = plan_of(plan);
    (is_first(&p->s) ? conv_first_order : conv_onednn_order)(p, from, to, import);
    return STATUS_OK;
}

status cpu_conv2d_import(conv2d *plan, const float *plain, float *weight)
{
    return reorder(plan, plain, weight, true);
}

status cpu_conv2d_export(conv2d *plan, const float *weight, float *plain)
{
    return reorder(plan, weight, plain, false);
}

status cpu_conv2d_forward(conv2d *plan, int n, const float *x, const float *weight,
                          const float *bias, float *y)
{
    if (!is_first(&plan_of(plan)->s))
        return conv_onednn_forward(onednn_of(plan), n, x, weight, bias, y);
    conv_first_forward(plan_of(plan), n, x, weight, bias, y);
    return STATUS_OK;
}

status cpu_conv2d_backward_weights(conv2d *plan, int n, const float *x, const float *y,
                                   const float *dy, const param_gradients *out)
{
    if (!is_first(&plan_of(plan)->s))
        return conv_onednn_backward_weights(onednn_of(plan), n, x, dy, out);
    conv_first_backward_weights(plan_of(plan), n, x, y, dy, out);
    return STATUS_OK;
}

status cpu_conv2d_backward_data(conv2d *plan, int n, const float *weight, const float *y,
                                const float *dy, float *dx)
{
    (void)y;
    ASSERT(!is_first(&plan_of(plan)->s));
    return conv_onednn_backward_data(onednn_of(plan), n, weight, dy, dx);
}
