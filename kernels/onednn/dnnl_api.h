/* The part of oneDNN's C interface in which version 2 and version 3 differ, in one form for both:
 * memory descriptors, and the making of a convolution. Nothing else asks for the version. */
#ifndef MNIST_DDP_KERNELS_ONEDNN_DNNL_API_H
#define MNIST_DDP_KERNELS_ONEDNN_DNNL_API_H

#include <dnnl.h>

/* A memory descriptor: dimensions, type and order of an array. Those that a primitive descriptor
 * is asked for live as long as that one. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t dnnl_api_md;
#else
typedef const dnnl_memory_desc_t *dnnl_api_md;
#endif

/* Of a float32 array; dnnl_format_tag_any: a primitive may choose the order. */
dnnl_status_t dnnl_api_md_create(int n_dims, const dnnl_dim_t *dims, dnnl_format_tag_t tag,
                                 dnnl_api_md *out);
void dnnl_api_md_destroy(dnnl_api_md md); /* accepts NULL */

/* The arrays of a convolution, or their gradients. */
typedef struct dnnl_api_conv {
    dnnl_api_md x, weight, bias, y;
} dnnl_api_conv;

/* The primitive descriptor of a pass with stride 1 and no padding, by the algorithm that oneDNN
 * prefers. A backward pass needs the forward pass's descriptor as its hint. */
dnnl_status_t dnnl_api_conv_forward(const dnnl_api_conv *md, dnnl_engine_t engine,
                                    const_dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out);
dnnl_status_t dnnl_api_conv_backward_data(const dnnl_api_conv *md, dnnl_engine_t engine,
                                          const_dnnl_primitive_attr_t attr,
                                          const_dnnl_primitive_desc_t hint,
                                          dnnl_primitive_desc_t *out);
dnnl_status_t dnnl_api_conv_backward_weights(const dnnl_api_conv *md, dnnl_engine_t engine,
                                             const_dnnl_primitive_attr_t attr,
                                             const_dnnl_primitive_desc_t hint,
                                             dnnl_primitive_desc_t *out);

#endif
