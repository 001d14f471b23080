#include "kernels/cuda/conv_graph.h"

#include <stddef.h>

void conv_descriptor_destroy(cudnnBackendDescriptor_t descriptor)
{
    if (descriptor != NULL)
        (void)CUDNN_CALL(cudnnBackendDestroyDescriptor(descriptor));
}

status conv_descriptor_make(cudnnBackendDescriptorType_t type, const conv_attribute *attributes,
                            int count, cudnnBackendDescriptor_t *out)
{
    cudnnBackendDescriptor_t made = NULL;
    TRY(CUDNN_CALL(cudnnBackendCreateDescriptor(type, &made)));
    status st = STATUS_OK;
    for (int i = 0; i < count && st == STATUS_OK; i++) {
        const conv_attribute *a = &attributes[i];
        if (a->count == 0)
            continue;
        st = CUDNN_CALL(cudnnBackendSetAttribute(made, a->name, a->type, a->count, a->value));
        if (st != STATUS_OK)
            st = status_context(st, "attribute %d", (int)a->name);
    }
    if (st == STATUS_OK)
        st = CUDNN_CALL(cudnnBackendFinalize(made));
    if (st != STATUS_OK) {
        st = status_context(st, "descriptor of type %d", (int)type);
        conv_descriptor_destroy(made);
        return st;
    }
    *out = made;
    return STATUS_OK;
}

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* The graph owns the descriptors. */
static status add(conv_graph *g, cudnnBackendDescriptorType_t type,
                  const conv_attribute *attributes, int count, cudnnBackendDescriptor_t *out)
{
    ASSERT(g->count < CONV_GRAPH_PARTS);
    TRY(conv_descriptor_make(type, attributes, count, out));
    g->parts[g->count++] = *out;
    return STATUS_OK;
}

/* (N, C, H, W). */
static status add_tensor(conv_graph *g, const conv_work *work, int64_t name, const int64_t sizes[4],
                         cudnnBackendDescriptor_t *out)
{
    int64_t c = sizes[1], h = sizes[2], w = sizes[3], alignment = CONV_ALIGNMENT;
    int64_t innermost[] = {h * w * c, 1, w * c, c}, planes[] = {c * h * w, h * w, w, 1};
    const int64_t *strides = work->planes ? planes : innermost;
    cudnnDataType_t type = name == CONV_SUM ? CUDNN_DATA_FLOAT : work->type;
    bool is_virtual = name == CONV_SUM;
    conv_attribute attributes[] = {
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name},
        {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, sizes},
        {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides},
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment},
        {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual, &is_virtual},
    };
    return add(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, attributes, COUNT_OF(attributes), out);
}

/* Stride 1, no padding, the kernel not flipped, sums in float32. */
static status add_convolution(conv_graph *g, cudnnBackendDescriptor_t *out)
{
    const int64_t dimensions = 2, ones[] = {1, 1}, zeros[] = {0, 0};
    const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const conv_attribute attributes[] = {
        {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dimensions},
        {CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums},
        {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode},
        {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, ones},
        {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, ones},
        {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, zeros},
        {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, zeros},
    };
    return add(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, attributes, COUNT_OF(attributes), out);
}

/* The attribute names of the three operations. */
typedef struct operation_names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t alpha, beta, convolution, w, x, y;
} operation_names;

static const operation_names *names_of(conv_pass pass)
{
    static const operation_names forward = {
        CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
    };
    static const operation_names data = {
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
    };
    static const operation_names weights = {
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
    };
    return pass == CONV_PASS_DATA ? &data : pass == CONV_PASS_WEIGHTS ? &weights : &forward;
}

static status add_operation(conv_graph *g, conv_pass pass, const cudnnBackendDescriptor_t *x,
                            const cudnnBackendDescriptor_t *w, const cudnnBackendDescriptor_t *y,
                            cudnnBackendDescriptor_t *out)
{
    const operation_names *names = names_of(pass);
    const float one = 1.0f, zero = 0.0f;
    cudnnBackendDescriptor_t convolution = NULL;
    TRY(add_convolution(g, &convolution));
    const conv_attribute attributes[] = {
        {names->alpha, CUDNN_TYPE_FLOAT, 1, &one},
        {names->beta, CUDNN_TYPE_FLOAT, 1, &zero},
        {names->convolution, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &convolution},
        {names->w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, w},
        {names->x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, x},
        {names->y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, y},
    };
    return add(g, names->type, attributes, COUNT_OF(attributes), out);
}

/* y = sum + bias */
static status add_bias(conv_graph *g, const cudnnBackendDescriptor_t *sum,
                       const cudnnBackendDescriptor_t *bias, const cudnnBackendDescriptor_t *y,
                       cudnnBackendDescriptor_t *out)
{
    const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_ADD;
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t addition = NULL;
    const conv_attribute pointwise[] = {
        {CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode},
        {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type},
    };
    TRY(add(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, pointwise, COUNT_OF(pointwise), &addition));
    const conv_attribute attributes[] = {
        {CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &addition},
        {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, sum},
        {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, bias},
        {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, y},
    };
    return add(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, attributes, COUNT_OF(attributes),
               out);
}

/* Everything below the graph itself; the operations in the order of execution. */
static status add_operations(const conv_work *work, conv_graph *g,
                             cudnnBackendDescriptor_t operations[2])
{
    const conv2d_shape *s = &work->shape;
    const int64_t n = work->n, k = s->kernel, o = s->out_channels;
    const int64_t x_sizes[] = {n, s->channels, s->height, s->width};
    const int64_t w_sizes[] = {o, s->channels, k, k};
    const int64_t y_sizes[] = {n, o, s->height - k + 1, s->width - k + 1};
    const int64_t bias_sizes[] = {1, o, 1, 1};
    cudnnBackendDescriptor_t x = NULL, w = NULL, y = NULL, bias = NULL, sum = NULL;
    TRY(add_tensor(g, work, CONV_X, x_sizes, &x));
    TRY(add_tensor(g, work, CONV_W, w_sizes, &w));
    TRY(add_tensor(g, work, CONV_Y, y_sizes, &y));
    if (work->pass != CONV_PASS_FORWARD_BIAS)
        return add_operation(g, work->pass, &x, &w, &y, &operations[0]);
    TRY(add_tensor(g, work, CONV_BIAS, bias_sizes, &bias));
    TRY(add_tensor(g, work, CONV_SUM, y_sizes, &sum));
    TRY(add_operation(g, work->pass, &x, &w, &sum, &operations[0]));
    return add_bias(g, &sum, &bias, &y, &operations[1]);
}

status conv_graph_init(const conv_work *work, cudnnHandle_t handle, conv_graph *out)
{
    cudnnBackendDescriptor_t operations[2] = {NULL, NULL};
    conv_graph g = {.graph = NULL, .count = 0};
    status st = add_operations(work, &g, operations);
    const conv_attribute attributes[] = {
        {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle != NULL, &handle},
        {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
         operations[1] != NULL ? 2 : 1, operations},
    };
    if (st == STATUS_OK)
        st = conv_descriptor_make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, attributes,
                                  COUNT_OF(attributes), &g.graph);
    if (st != STATUS_OK) {
        conv_graph_close(&g);
        return st;
    }
    *out = g;
    return STATUS_OK;
}

void conv_graph_close(conv_graph *g)
{
    conv_descriptor_destroy(g->graph);
    while (g->count > 0)
        conv_descriptor_destroy(g->parts[--g->count]);
    g->graph = NULL;
}
