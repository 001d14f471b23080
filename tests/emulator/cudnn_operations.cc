/* Emulated cuDNN: tensors and operations, made of their attributes. */
#include "cudnn_descriptor.h"
#include "emulator.h"

namespace emulated
{

namespace
{

template <size_t N>
bool get_array(const descriptor &d, cudnnBackendAttributeName_t name, std::array<int64_t, N> *out)
{
    auto found = d.attributes.find(name);
    if (found == d.attributes.end() || found->second.count != static_cast<int64_t>(N))
        return false;
    for (size_t i = 0; i < N; i++)
        (*out)[i] = d.get<int64_t>(name, 0, i);
    return true;
}

bool all_at_least(const int64_t *values, size_t count, int64_t least)
{
    for (size_t i = 0; i < count; i++)
        if (values[i] < least)
            return false;
    return true;
}

/* The attributes of one kind of convolution. */
struct operation_attributes {
    convolution_kind kind;
    cudnnBackendAttributeName_t convolution, x, w, y, alpha, beta;
};

const operation_attributes &attributes_of(cudnnBackendDescriptorType_t type)
{
    static const operation_attributes forward = {convolution_kind::forward,
                                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    static const operation_attributes backward_data = {
        convolution_kind::backward_data,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    static const operation_attributes backward_filter = {
        convolution_kind::backward_filter,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
    return type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR         ? forward
           : type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ? backward_data
                                                                                  : backward_filter;
}

/* Whether b can be repeated along its dimensions of 1 to x's shape. */
bool broadcasts(const tensor_spec &b, const tensor_spec &x)
{
    for (size_t i = 0; i < b.dims.size(); i++)
        if (b.dims[i] != 1 && b.dims[i] != x.dims[i])
            return false;
    return true;
}

} // namespace

cudnnStatus_t finalize_tensor(descriptor &d)
{
    tensor_spec tensor = {};
    if (!d.has(CUDNN_ATTR_TENSOR_DATA_TYPE) || !d.has(CUDNN_ATTR_TENSOR_UNIQUE_ID) ||
        !d.has(CUDNN_ATTR_TENSOR_DIMENSIONS) || !d.has(CUDNN_ATTR_TENSOR_STRIDES))
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM,
                             "a tensor without type, id, dimensions or strides");
    if (d.attributes[CUDNN_ATTR_TENSOR_DIMENSIONS].count !=
        d.attributes[CUDNN_ATTR_TENSOR_STRIDES].count)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "as many strides as dimensions are needed");
    if (!get_array(d, CUDNN_ATTR_TENSOR_DIMENSIONS, &tensor.dims) ||
        !get_array(d, CUDNN_ATTR_TENSOR_STRIDES, &tensor.strides))
        fatal("cuDNN: only tensors of 4 dimensions are emulated");
    tensor.type = d.get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
    tensor.id = d.get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    tensor.alignment = d.get<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    tensor.is_virtual = d.get<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    int64_t width = tensor.type == CUDNN_DATA_FLOAT ? 4 : 2;
    if (tensor.alignment <= 0 || tensor.alignment % width != 0)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "an alignment of %lld bytes",
                             static_cast<long long>(tensor.alignment));
    if (!all_at_least(tensor.dims.data(), 4, 1) || !all_at_least(tensor.strides.data(), 4, 1))
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "a dimension or stride below 1");
    d.made = tensor;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_convolution(descriptor &d)
{
    convolution_spec shape = {};
    if (!d.has(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) || !d.has(CUDNN_ATTR_CONVOLUTION_CONV_MODE) ||
        d.get<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) != 2 ||
        !get_array(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, &shape.dilations) ||
        !get_array(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &shape.strides) ||
        !get_array(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &shape.after) ||
        !get_array(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &shape.before))
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "a convolution without all of its attributes");
    if (!all_at_least(shape.dilations.data(), 2, 1) || !all_at_least(shape.strides.data(), 2, 1) ||
        !all_at_least(shape.before.data(), 2, 0) || !all_at_least(shape.after.data(), 2, 0))
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "a dilation, stride or padding too small");
    shape.compute = d.get<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
    shape.mode = d.get<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE);
    d.made = shape;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_pointwise(descriptor &d)
{
    if (!d.has(CUDNN_ATTR_POINTWISE_MODE) || !d.has(CUDNN_ATTR_POINTWISE_MATH_PREC))
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "a pointwise function without mode or type");
    if (d.get<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC) != CUDNN_DATA_FLOAT)
        fatal("cuDNN: only pointwise functions in float are emulated");
    pointwise_spec function = {};
    function.mode = d.get<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    function.plain_relu = d.number(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, 0.0) == 0.0 &&
                          d.number(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, 0.0) == 0.0 &&
                          d.number(CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, 1e38) >= 1e38;
    d.made = function;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_convolution_operation(descriptor &d)
{
    const operation_attributes &names = attributes_of(d.type);
    const auto *shape = d.get_made<convolution_spec>(names.convolution);
    const auto *x = d.get_made<tensor_spec>(names.x), *w = d.get_made<tensor_spec>(names.w);
    const auto *y = d.get_made<tensor_spec>(names.y);
    if (shape == nullptr || x == nullptr || w == nullptr || y == nullptr)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM,
                             "an operation without convolution or tensors, or not finalized ones");
    if (!shape->fits(*x, *w, *y))
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "the tensors' shapes do not fit together");
    d.made = convolution_work{names.kind,
                              *shape,
                              *x,
                              *w,
                              *y,
                              d.number(names.alpha, 1.0),
                              d.number(names.beta, 0.0),
                              1.0,
                              std::nullopt,
                              false};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_pointwise_operation(descriptor &d)
{
    const auto *function = d.get_made<pointwise_spec>(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto *x = d.get_made<tensor_spec>(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    const auto *b = d.get_made<tensor_spec>(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const auto *y = d.get_made<tensor_spec>(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    if (function == nullptr || x == nullptr || y == nullptr)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM,
                             "a pointwise operation without function, x or y");
    bool wants_b = function->mode == CUDNN_POINTWISE_ADD;
    if (wants_b != (b != nullptr))
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "b %s",
                             wants_b ? "is missing" : "is one too many");
    if (x->dims != y->dims || (b != nullptr && !broadcasts(*b, *x)))
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                             "the tensors' shapes do not fit together");
    pointwise_operation operation = {*function, *x, *y, std::nullopt, 1.0, 1.0};
    if (b != nullptr)
        operation.b = *b;
    operation.x_scale = d.number(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, 1.0);
    operation.b_scale = d.number(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, 1.0);
    d.made = operation;
    return CUDNN_STATUS_SUCCESS;
}

} // namespace emulated
