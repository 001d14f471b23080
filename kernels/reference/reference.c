#include "kernels/reference/reference.h"

#include "kernels/host.h"
#include "kernels/optimizer_math.h"

static void destroy(device *dev)
{
    (void)dev;
}

static status sgd_step(device *dev, float *param, const float *grad, float *momentum_buffer,
                       size_t count, float lr, float momentum, float weight_decay, bool nesterov,
                       bool first_step)
{
    (void)dev;
    sgd_math m = {lr, momentum, weight_decay, nesterov, first_step};
    if (momentum_buffer == NULL)
        sgd_plain(param, grad, count, m);
    else
        sgd_momentum(param, grad, momentum_buffer, count, m);
    return STATUS_OK;
}

static status adam_step(device *dev, float *param, const float *grad, float *exp_avg,
                        float *exp_avg_sq, size_t count, const adam_options *o, int64_t step)
{
    (void)dev;
    adam(param, grad, exp_avg, exp_avg_sq, count, adam_math_at(o, step));
    return STATUS_OK;
}

static status adadelta_step(device *dev, float *param, const float *grad, float *square_avg,
                            float *acc_delta, size_t count, float lr, float rho, float eps,
                            float weight_decay)
{
    (void)dev;
    adadelta(param, grad, square_avg, acc_delta, count,
             (adadelta_math){lr, rho, eps, weight_decay});
    return STATUS_OK;
}

static const device_ops reference_ops = {
    .name = "reference",
    .destroy = destroy,
    .alloc = host_alloc,
    .free = host_free,
    .upload = host_copy,
    .download = host_copy,
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
    .linear_backward_weights = reference_linear_backward_weights,
    .linear_backward_data = reference_linear_backward_data,
    .cross_entropy = host_cross_entropy,
    .sgd_step = sgd_step,
    .adam_step = adam_step,
    .adadelta_step = adadelta_step,
};

status reference_device_create(int threads, device *dev)
{
    (void)threads;
    dev->ops = &reference_ops;
    dev->threads = 1;
    return STATUS_OK;
}
