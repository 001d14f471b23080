#include "model/pass.h"

#include <string.h>

/* How many of n layers are a block: a convolution, perhaps a pool, a convolution and a pool. 0: the
 * network does not begin with one, or the device has none. *last_conv: the index of the second. */
static size_t block_layers(const device *dev, const layer_spec *specs, size_t n, size_t *last_conv)
{
    if (dev->ops->conv_block_create == NULL || n < 4 || specs[0].kind != LAYER_CONV2D)
        return 0;
    *last_conv = specs[1].kind == LAYER_POOL ? 2 : 1;
    bool ends = specs[*last_conv].kind == LAYER_CONV2D && specs[*last_conv + 1].kind == LAYER_POOL;
    return ends ? *last_conv + 2 : 0;
}

static status block_init(device *dev, const layer_spec *specs, int max_n, size_t last_conv, pass *p)
{
    conv_block_shape shape = {.pool_between = last_conv == 2};
    shape.conv[0] = layer_conv_shape(&specs[0]);
    shape.conv[1] = layer_conv_shape(&specs[last_conv]);
    for (size_t i = 0; i + 1 < p->n; i++)
        p->layers[i] = (layer){.spec = &specs[i], .dropout_index = -1};
    p->conv[0] = &p->layers[0];
    p->conv[1] = &p->layers[last_conv];
    TRY(layer_init(dev, &specs[p->n - 1], max_n, pass_last(p)));
    return dev->ops->conv_block_create(dev, &shape, max_n, &p->block);
}

status pass_init(device *dev, const layer_spec *specs, size_t n_specs, int max_n, layer *layers,
                 pass *out)
{
    size_t last_conv = 0, n = block_layers(dev, specs, n_specs, &last_conv);
    *out = (pass){.layers = layers, .n = n > 0 ? n : 1};
    status st = n > 0 ? block_init(dev, specs, max_n, last_conv, out)
                      : layer_init(dev, &specs[0], max_n, layers);
    if (st != STATUS_OK)
        pass_close(dev, out);
    return st;
}

void pass_close(device *dev, pass *p)
{
    if (p->block != NULL)
        dev->ops->conv_block_destroy(p->block);
    for (size_t i = 0; i < p->n; i++)
        layer_close(dev, &p->layers[i]);
    *p = (pass){0};
}

const char *pass_name(const pass *p)
{
    return p->block != NULL ? "conv_block" : layer_name(p->layers);
}

static conv_block_batch block_batch(const pass *p, const pass_input *in)
{
    const layer *pool = pass_last(p);
    conv_block_batch images = {.n = in->n, .x = in->x, .out = {pool->y, pool->argmax}};
    for (int i = 0; i < CONV_BLOCK_CONVS; i++) {
        images.weight[i] = in->parameters + p->conv[i]->weight->offset;
        images.bias[i] = in->parameters + p->conv[i]->bias->offset;
    }
    return images;
}

status pass_forward(device *dev, const pass *p, const pass_input *in, const dropout *drop)
{
    if (p->block == NULL)
        return layer_forward(dev, p->layers, in->n, in->x, in->parameters, drop);
    conv_block_batch images = block_batch(p, in);
    return dev->ops->conv_block_forward(p->block, &images, drop);
}

status pass_backward_weights(device *dev, const pass *p, const pass_input *in, float *gradients,
                             bool accumulate)
{
    if (p->block == NULL)
        return layer_backward_weights(dev, p->layers, in->n, in->x, gradients, accumulate);
    conv_block_batch images = block_batch(p, in);
    param_gradients out[CONV_BLOCK_CONVS];
    for (int i = 0; i < CONV_BLOCK_CONVS; i++)
        out[i] = layer_gradients(p->conv[i], gradients, accumulate);
    const layer *pool = pass_last(p);
    return dev->ops->conv_block_backward(p->block, &images, pool->spec->dropout, pool->dy, out);
}

status pass_backward_data(device *dev, const pass *p, const pass_input *in, layer *before)
{
    ASSERT(p->block == NULL);
    return layer_backward_data(dev, p->layers, in->n, in->parameters, before);
}

static status reorder_layer(device *dev, const pass *p, const layer *lay, const float *from,
                            float *to, bool import)
{
    const device_ops *ops = dev->ops;
    if (p->block != NULL)
        return (import ? ops->conv_block_import
                       : ops->conv_block_export)(p->block, lay == p->conv[0] ? 0 : 1, from, to);
    if (lay->conv != NULL)
        return (import ? ops->conv2d_import : ops->conv2d_export)(lay->conv, from, to);
    return (import ? ops->linear_import : ops->linear_export)(lay->line, from, to);
}

status pass_reorder(device *dev, const pass *p, const float *from, float *to, bool import)
{
    for (size_t i = 0; i < p->n; i++) {
        const layer *lay = &p->layers[i];
        if (lay->weight == NULL)
            continue;
        size_t w = lay->weight->offset, b = lay->bias->offset;
        TRY(reorder_layer(dev, p, lay, from + w, to + w, import));
        memcpy(to + b, from + b, sizeof *to * lay->bias->count);
    }
    return STATUS_OK;
}
