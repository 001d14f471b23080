#include "kernels/onednn/dnnl_api.h"

#include <stdint.h>
#include <stdlib.h>

static const dnnl_dims_t ones = {1, 1}, zeros = {0, 0}; /* height and width */

#if DNNL_VERSION_MAJOR >= 3

dnnl_status_t dnnl_api_md_create(int n_dims, const dnnl_dim_t *dims, dnnl_format_tag_t tag,
                                 dnnl_api_md *out)
{
    dnnl_memory_desc_t made = NULL;
    dnnl_status_t code = dnnl_memory_desc_create_with_tag(&made, n_dims, dims, dnnl_f32, tag);
    if (code == dnnl_success)
        *out = made;
    return code;
}

void dnnl_api_md_destroy(dnnl_api_md md)
{
    if (md != NULL)
        dnnl_memory_desc_destroy((dnnl_memory_desc_t)(uintptr_t)md);
}

dnnl_status_t dnnl_api_conv_forward(const dnnl_api_conv *md, dnnl_engine_t engine,
                                    const_dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out)
{
    return dnnl_convolution_forward_primitive_desc_create(
        out, engine, dnnl_forward_training, dnnl_convolution_auto, md->x, md->weight, md->bias,
        md->y, ones, zeros, zeros, zeros, attr);
}

dnnl_status_t dnnl_api_conv_backward_data(const dnnl_api_conv *md, dnnl_engine_t engine,
                                          const_dnnl_primitive_attr_t attr,
                                          const_dnnl_primitive_desc_t hint,
                                          dnnl_primitive_desc_t *out)
{
    return dnnl_convolution_backward_data_primitive_desc_create(out, engine, dnnl_convolution_auto,
                                                                md->x, md->weight, md->y, ones,
                                                                zeros, zeros, zeros, hint, attr);
}

dnnl_status_t dnnl_api_conv_backward_weights(const dnnl_api_conv *md, dnnl_engine_t engine,
                                             const_dnnl_primitive_attr_t attr,
                                             const_dnnl_primitive_desc_t hint,
                                             dnnl_primitive_desc_t *out)
{
    return dnnl_convolution_backward_weights_primitive_desc_create(
        out, engine, dnnl_convolution_auto, md->x, md->weight, md->bias, md->y, ones, zeros, zeros,
        zeros, hint, attr);
}

#else

dnnl_status_t dnnl_api_md_create(int n_dims, const dnnl_dim_t *dims, dnnl_format_tag_t tag,
                                 dnnl_api_md *out)
{
    dnnl_memory_desc_t *made = malloc(sizeof *made);
    if (made == NULL)
        return dnnl_out_of_memory;
    dnnl_status_t code = dnnl_memory_desc_init_by_tag(made, n_dims, dims, dnnl_f32, tag);
    if (code == dnnl_success)
        *out = made;
    else
        free(made);
    return code;
}

void dnnl_api_md_destroy(dnnl_api_md md)
{
    free((void *)(uintptr_t)md);
}

/* Here a primitive descriptor is made of an operation's descriptor. */
dnnl_status_t dnnl_api_conv_forward(const dnnl_api_conv *md, dnnl_engine_t engine,
                                    const_dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t op;
    dnnl_status_t code =
        dnnl_convolution_forward_desc_init(&op, dnnl_forward_training, dnnl_convolution_auto, md->x,
                                           md->weight, md->bias, md->y, ones, zeros, zeros);
    return code != dnnl_success ? code : dnnl_primitive_desc_create(out, &op, attr, engine, NULL);
}

dnnl_status_t dnnl_api_conv_backward_data(const dnnl_api_conv *md, dnnl_engine_t engine,
                                          const_dnnl_primitive_attr_t attr,
                                          const_dnnl_primitive_desc_t hint,
                                          dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t op;
    dnnl_status_t code = dnnl_convolution_backward_data_desc_init(
        &op, dnnl_convolution_auto, md->x, md->weight, md->y, ones, zeros, zeros);
    return code != dnnl_success ? code : dnnl_primitive_desc_create(out, &op, attr, engine, hint);
}

dnnl_status_t dnnl_api_conv_backward_weights(const dnnl_api_conv *md, dnnl_engine_t engine,
                                             const_dnnl_primitive_attr_t attr,
                                             const_dnnl_primitive_desc_t hint,
                                             dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t op;
    dnnl_status_t code = dnnl_convolution_backward_weights_desc_init(
        &op, dnnl_convolution_auto, md->x, md->weight, md->bias, md->y, ones, zeros, zeros);
    return code != dnnl_success ? code : dnnl_primitive_desc_create(out, &op, attr, engine, hint);
}

#endif
