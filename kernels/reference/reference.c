#include "kernels/reference/reference.h"

#include "kernels/host.h"
#include "kernels/optimizer_math.h"

#include <stdio.h>

static void destroy(device *dev)
{
    (void)dev;
}

static status sgd_step(device *dev, const optimizer_slice *s, step_state *state,
                       const sgd_options *options)
{
    (void)dev;
    sgd_math m = sgd_math_of(options, state);
    if (s->state1 == NULL)
        sgd_plain(s->param, s->grad, s->count, m);
    else
        sgd_momentum(s->param, s->grad, s->state1, s->count, m);
    return STATUS_OK;
}

static status adam_step(device *dev, const optimizer_slice *s, step_state *state,
                        const adam_options *options)
{
    (void)dev;
    adam(s->param, s->grad, s->state1, s->state2, s->count, adam_math_of(options, state));
    return STATUS_OK;
}

static status adadelta_step(device *dev, const optimizer_slice *s, step_state *state,
                            const adadelta_options *options)
{
    (void)dev;
    adadelta(s->param, s->grad, s->state1, s->state2, s->count, adadelta_math_of(options, state));
    return STATUS_OK;
}

static const device_ops reference_ops = {
    .name = "reference",
    .destroy = destroy,
    HOST_OPS,
    .gather = host_gather,
    .conv2d_create = reference_conv2d_create,
    .conv2d_destroy = reference_conv2d_destroy,
    .conv2d_import = reference_conv2d_copy,
    .conv2d_export = reference_conv2d_copy,
    .conv2d_forward = reference_conv2d_forward,
    .conv2d_backward_weights = reference_conv2d_backward_weights,
    .conv2d_backward_data = reference_conv2d_backward_data,
    .pool_forward = reference_pool_forward,
    .pool_backward = reference_pool_backward,
    .linear_create = reference_linear_create,
    .linear_destroy = reference_linear_destroy,
    .linear_import = reference_linear_copy,
    .linear_export = reference_linear_copy,
    .linear_forward = reference_linear_forward,
    .linear_finish = reference_linear_finish,
    .linear_backward_weights = reference_linear_backward_weights,
    .linear_backward_data = reference_linear_backward_data,
    .clip_gradients = host_clip_gradients,
    .sgd_step = sgd_step,
    .adam_step = adam_step,
    .adadelta_step = adadelta_step,
};

status reference_device_create(const device_options *options, device *dev)
{
    if (options->precision != PRECISION_F32)
        return FAIL(STATUS_INVALID, "the reference kernels compute in f32, not in %s",
                    precision_name(options->precision));
    (void)options;
    dev->ops = &reference_ops;
    snprintf(dev->description, sizeof dev->description, "reference kernels");
    dev->threads = 1;
    return STATUS_OK;
}
