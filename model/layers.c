#include "model/layers.h"

#include "kernels/dropout.h"

size_t layer_out_elements(const layer_spec *s)
{
    switch (s->kind) {
    case LAYER_CONV2D:
        return (size_t)(s->out * (s->height - s->kernel + 1) * (s->width - s->kernel + 1));
    case LAYER_POOL:
        return (size_t)(s->channels * (s->height / 2) * (s->width / 2));
    case LAYER_LINEAR:
        break;
    }
    return (size_t)s->out;
}

int layer_fan_in(const layer_spec *s)
{
    switch (s->kind) {
    case LAYER_CONV2D:
        return s->channels * s->kernel * s->kernel;
    case LAYER_POOL:
        return 0;
    case LAYER_LINEAR:
        break;
    }
    return s->channels * s->height * s->width;
}

size_t layer_count(const layer_spec *s)
{
    return s->name == NULL ? 0 : (size_t)(layer_fan_in(s) + 1) * (size_t)s->out;
}

const char *layer_name(const layer *lay)
{
    return lay->spec->name != NULL ? lay->spec->name : "pool";
}

conv2d_shape layer_conv_shape(const layer_spec *s)
{
    return (conv2d_shape){.channels = s->channels,
                          .height = s->height,
                          .width = s->width,
                          .out_channels = s->out,
                          .kernel = s->kernel,
                          .plain_input = s->channels == 1,
                          .relu = s->relu};
}

static status plan_create(device *dev, layer *lay, int max_n)
{
    const layer_spec *s = lay->spec;
    if (s->kind == LAYER_CONV2D) {
        conv2d_shape shape = layer_conv_shape(s);
        return dev->ops->conv2d_create(dev, &shape, max_n, &lay->conv);
    }
    if (s->kind == LAYER_LINEAR) {
        linear_shape shape = {
            .in_features = layer_fan_in(s), .out_features = s->out, .logits = !s->relu};
        if (s->height > 1) {
            shape.channels = s->channels;
            shape.height = s->height;
            shape.width = s->width;
        }
        return dev->ops->linear_create(dev, &shape, max_n, &lay->line);
    }
    return STATUS_OK;
}

/* Nobody reads the output of a convolution without relu after forward: the pool after it keeps its
 * argmax. So the gradient may overwrite the output. */
static bool y_is_spent(const layer_spec *s)
{
    return s->kind == LAYER_CONV2D && !s->relu;
}

status layer_init(device *dev, const layer_spec *spec, int max_n, layer *out)
{
    *out = (layer){.spec = spec, .out_elements = layer_out_elements(spec), .dropout_index = -1};
    size_t elements = (size_t)max_n * out->out_elements;
    status st = plan_create(dev, out, max_n);
    if (st == STATUS_OK)
        st = dev->ops->alloc(dev, sizeof *out->y * elements, (void **)&out->y);
    if (y_is_spent(spec))
        out->dy = out->y;
    else if (st == STATUS_OK)
        st = dev->ops->alloc(dev, sizeof *out->dy * elements, (void **)&out->dy);
    if (st == STATUS_OK && spec->kind == LAYER_POOL)
        st = dev->ops->alloc(dev, elements, (void **)&out->argmax);
    if (st != STATUS_OK)
        layer_close(dev, out);
    return st;
}

void layer_close(device *dev, layer *lay)
{
    if (lay->conv != NULL)
        dev->ops->conv2d_destroy(lay->conv);
    dev->ops->linear_destroy(lay->line);
    if (lay->dy != lay->y)
        dev->ops->free(dev, lay->dy);
    dev->ops->free(dev, lay->y);
    dev->ops->free(dev, lay->argmax);
    *lay = (layer){0};
}

dropout layer_dropout(const layer *lay, const batch *in, network_mode mode, uint64_t seed)
{
    return (dropout){.p = mode == NETWORK_TRAIN ? lay->spec->dropout : 0.0f,
                     .seed = seed,
                     .layer = (uint32_t)lay->dropout_index,
                     .first_block = lay->first / DROPOUT_BLOCK,
                     .samples = in->samples,
                     .state = in->state,
                     .keep = lay->keep};
}

static pool_shape pool_of(const layer_spec *s, int n)
{
    return (pool_shape){s->channels, s->height, s->width, n};
}

status layer_forward(device *dev, layer *lay, int n, const float *x, const float *parameters,
                     const dropout *drop)
{
    const layer_spec *s = lay->spec;
    if (s->kind == LAYER_POOL) {
        pool_shape shape = pool_of(s, n);
        pool_output out = {lay->y, lay->argmax};
        return dev->ops->pool_forward(dev, &shape, x, drop, &out);
    }
    const float *weight = parameters + lay->weight->offset, *bias = parameters + lay->bias->offset;
    if (s->kind == LAYER_CONV2D)
        return dev->ops->conv2d_forward(lay->conv, n, x, weight, bias, lay->y);
    linear_epilogue epilogue = {bias, s->relu, drop};
    return dev->ops->linear_forward(lay->line, n, x, weight, lay->is_partial ? NULL : &epilogue,
                                    lay->y);
}

status layer_finish(device *dev, layer *lay, int n, const float *parameters, const dropout *drop)
{
    linear_epilogue epilogue = {parameters + lay->bias->offset, lay->spec->relu, drop};
    return dev->ops->linear_finish(lay->line, n, &epilogue, lay->y);
}

param_gradients layer_gradients(const layer *lay, float *gradients, bool accumulate)
{
    return (param_gradients){gradients + lay->weight->offset, gradients + lay->bias->offset,
                             accumulate};
}

status layer_backward_weights(device *dev, layer *lay, int n, const float *x, float *gradients,
                              bool accumulate)
{
    if (lay->weight == NULL)
        return STATUS_OK;
    param_gradients out = layer_gradients(lay, gradients, accumulate);
    if (lay->spec->kind == LAYER_CONV2D)
        return dev->ops->conv2d_backward_weights(lay->conv, n, x, lay->y, lay->dy, &out);
    return dev->ops->linear_backward_weights(lay->line, n, x, lay->dy, &out);
}

status layer_backward_data(device *dev, layer *lay, int n, const float *parameters, layer *before)
{
    const layer_spec *s = lay->spec;
    if (s->kind == LAYER_POOL) {
        pool_shape shape = pool_of(s, n);
        pool_output out = {lay->y, lay->argmax};
        return dev->ops->pool_backward(dev, &shape, &out, lay->dy, s->dropout, before->dy);
    }
    const float *weight = parameters + lay->weight->offset;
    if (s->kind == LAYER_CONV2D)
        return dev->ops->conv2d_backward_data(lay->conv, n, weight, lay->y, lay->dy, before->dy);
    /* The linear layer before this one has relu and dropout in its output: their backward pass is
     * done here. A convolution block does its own, and reads dy only where they let through. */
    bool is_linear = before->spec->kind == LAYER_LINEAR;
    bool relu = before->spec->relu && (is_linear || dev->ops->conv_block_backward != NULL);
    relu_output input = {before->y, is_linear ? before->spec->dropout : 0};
    return dev->ops->linear_backward_data(lay->line, n, weight, lay->dy, relu ? &input : NULL,
                                          before->dy);
}
