/* For the tests of the emulated cuDNN: shapes, descriptors, and what the heuristic offers. */
#ifndef MNIST_DDP_TESTS_EMULATOR_CUDNN_TEST_H
#define MNIST_DDP_TESTS_EMULATOR_CUDNN_TEST_H

#include "library_test.h"

#include <cudnn.h>

#include <array>

#define GOOD(call) EXPECT((call) == CUDNN_STATUS_SUCCESS)

namespace cudnn_test
{

struct geometry {
    int64_t n, c, h, w, k, r, s, pad, stride, dilation;

    int64_t out(int64_t in, int64_t kernel) const
    {
        return (in + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
    }

    int64_t p() const
    {
        return out(h, r);
    }

    int64_t q() const
    {
        return out(w, s);
    }
};

using dims = std::array<int64_t, 4>;

struct tensor {
    dims size, stride;

    tensor(dims size_, bool channels_last) : size(size_)
    {
        stride = channels_last ? dims{size[1] * size[2] * size[3], 1, size[3] * size[1], size[1]}
                               : dims{size[1] * size[2] * size[3], size[2] * size[3], size[3], 1};
    }

    size_t count() const
    {
        return static_cast<size_t>(size[0] * size[1] * size[2] * size[3]);
    }

    size_t at(int64_t a, int64_t b, int64_t c, int64_t d) const
    {
        return static_cast<size_t>(a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3]);
    }
};

struct tensors {
    tensor x, w, y;

    tensors(const geometry &g, bool channels_last)
        : x({g.n, g.c, g.h, g.w}, channels_last), w({g.k, g.c, g.r, g.s}, channels_last),
          y({g.n, g.k, g.p(), g.q()}, channels_last)
    {
    }
};

/* Calls fn(place in x, in w, in y) for each product of the convolution. */
template <typename Fn> void each_product(const geometry &g, const tensors &t, Fn fn)
{
    for (int64_t n = 0; n < g.n; n++)
        for (int64_t k = 0; k < g.k; k++)
            for (int64_t p = 0; p < g.p(); p++)
                for (int64_t q = 0; q < g.q(); q++)
                    for (int64_t c = 0; c < g.c; c++)
                        for (int64_t r = 0; r < g.r; r++)
                            for (int64_t s = 0; s < g.s; s++) {
                                int64_t h = p * g.stride + r * g.dilation - g.pad;
                                int64_t w = q * g.stride + s * g.dilation - g.pad;
                                if (h >= 0 && h < g.h && w >= 0 && w < g.w)
                                    fn(t.x.at(n, c, h, w), t.w.at(k, c, r, s), t.y.at(n, k, p, q));
                            }
}

/* Descriptors are made here and destroyed together. */
class descriptors
{
  public:
    ~descriptors()
    {
        for (cudnnBackendDescriptor_t d : all)
            GOOD(cudnnBackendDestroyDescriptor(d));
    }

    cudnnBackendDescriptor_t make(cudnnBackendDescriptorType_t type)
    {
        cudnnBackendDescriptor_t d = nullptr;
        GOOD(cudnnBackendCreateDescriptor(type, &d));
        all.push_back(d);
        return d;
    }

  private:
    std::vector<cudnnBackendDescriptor_t> all;
};

template <typename T>
void set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
         cudnnBackendAttributeType_t type, const T &value, int64_t count = 1)
{
    GOOD(cudnnBackendSetAttribute(d, name, type, count, &value));
}

inline void set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendDescriptor_t value)
{
    set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value);
}

enum : int64_t { ID_X = 10, ID_W, ID_Y, ID_BIAS, ID_SUM, ID_BIASED };

inline cudnnBackendDescriptor_t make_tensor(descriptors &all, int64_t id, const tensor &t,
                                            cudnnDataType_t type, bool is_virtual = false)
{
    cudnnBackendDescriptor_t d = all.make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
    set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, t.size, 4);
    set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, t.stride, 4);
    set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
    set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{16});
    set(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
    GOOD(cudnnBackendFinalize(d));
    return d;
}

inline cudnnBackendDescriptor_t make_convolution(descriptors &all, const geometry &g)
{
    cudnnBackendDescriptor_t d = all.make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    const std::array<int64_t, 2> pad = {g.pad, g.pad}, stride = {g.stride, g.stride},
                                 dilation = {g.dilation, g.dilation};
    set(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    set(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION);
    set(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, int64_t{2});
    set(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, dilation, 2);
    set(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, stride, 2);
    set(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, pad, 2);
    set(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, pad, 2);
    GOOD(cudnnBackendFinalize(d));
    return d;
}

struct operation_names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t convolution, x, w, y, alpha, beta;
};

enum kind { FORWARD, BACKWARD_DATA, BACKWARD_FILTER, FUSED };

inline const operation_names NAMES[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

inline cudnnBackendDescriptor_t make_pointwise(descriptors &all, cudnnPointwiseMode_t mode,
                                               cudnnBackendDescriptor_t x,
                                               cudnnBackendDescriptor_t b,
                                               cudnnBackendDescriptor_t y)
{
    cudnnBackendDescriptor_t function = all.make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(function, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
    set(function, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    GOOD(cudnnBackendFinalize(function));
    cudnnBackendDescriptor_t d = all.make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function);
    set(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b != nullptr)
        set(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    set(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    GOOD(cudnnBackendFinalize(d));
    return d;
}

struct problem {
    kind what;
    geometry g;
    bool channels_last;
    cudnnDataType_t type, weight_type;
    float beta;
};

inline cudnnBackendDescriptor_t make_graph(descriptors &all, const problem &p)
{
    tensors t(p.g, p.channels_last);
    bool fused = p.what == FUSED;
    const operation_names &names = NAMES[fused ? FORWARD : p.what];
    cudnnBackendDescriptor_t op = all.make(names.type);
    auto y = make_tensor(all, ID_Y, t.y, p.type);
    auto sum = make_tensor(all, ID_SUM, t.y, CUDNN_DATA_FLOAT, true);
    set(op, names.convolution, make_convolution(all, p.g));
    set(op, names.x, make_tensor(all, ID_X, t.x, p.type));
    set(op, names.w, make_tensor(all, ID_W, t.w, p.weight_type));
    set(op, names.y, fused ? sum : y);
    set(op, names.alpha, CUDNN_TYPE_FLOAT, 1.0f);
    set(op, names.beta, CUDNN_TYPE_DOUBLE, static_cast<double>(p.beta));
    GOOD(cudnnBackendFinalize(op));
    std::vector<cudnnBackendDescriptor_t> operations = {op};
    if (fused) {
        auto bias =
            make_tensor(all, ID_BIAS, tensor({1, p.g.k, 1, 1}, p.channels_last), CUDNN_DATA_FLOAT);
        auto biased = make_tensor(all, ID_BIASED, t.y, CUDNN_DATA_FLOAT, true);
        operations.push_back(make_pointwise(all, CUDNN_POINTWISE_ADD, sum, bias, biased));
        operations.push_back(make_pointwise(all, CUDNN_POINTWISE_RELU_FWD, biased, nullptr, y));
    }
    cudnnBackendDescriptor_t graph = all.make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    GOOD(cudnnBackendSetAttribute(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                  static_cast<int64_t>(operations.size()), operations.data()));
    GOOD(cudnnBackendFinalize(graph));
    return graph;
}

struct offer {
    cudnnBackendDescriptor_t configuration;
    int64_t id;
    unsigned numerical, behaviour; /* bits of notes */
};

inline unsigned read_notes(cudnnBackendDescriptor_t engine, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t type)
{
    int values[16];
    int64_t count = 0;
    unsigned bits = 0;
    GOOD(cudnnBackendGetAttribute(engine, name, type, 16, &count, values));
    for (int64_t i = 0; i < count; i++)
        bits |= 1u << values[i];
    return bits;
}

/* What the heuristic offers in `mode`; *status is that of its finalize. */
inline std::vector<offer> ask(descriptors &all, cudnnBackendDescriptor_t graph,
                              cudnnBackendHeurMode_t mode, cudnnStatus_t *status)
{
    cudnnBackendDescriptor_t heuristic = all.make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
    *status = cudnnBackendFinalize(heuristic);
    if (*status != CUDNN_STATUS_SUCCESS)
        return {};
    int64_t count = 0, same = 0;
    GOOD(cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
    std::vector<cudnnBackendDescriptor_t> found(static_cast<size_t>(count));
    for (auto &one : found)
        one = all.make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    GOOD(cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &same, found.data()));
    EXPECT(same == count);
    std::vector<offer> offers;
    for (auto &one : found) {
        cudnnBackendDescriptor_t engine = all.make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
        offer o = {one, -1, 0, 0};
        GOOD(cudnnBackendGetAttribute(one, CUDNN_ATTR_ENGINECFG_ENGINE,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &same, &engine));
        GOOD(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                                      &same, &o.id));
        o.numerical =
            read_notes(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE);
        o.behaviour = read_notes(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE);
        offers.push_back(o);
    }
    return offers;
}

inline cudnnStatus_t make_plan(descriptors &all, cudnnHandle_t handle, const offer &o,
                               cudnnBackendDescriptor_t *plan, int64_t *workspace_bytes)
{
    int64_t count = 0;
    *plan = all.make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(*plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle);
    set(*plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, o.configuration);
    if (cudnnStatus_t status = cudnnBackendFinalize(*plan))
        return status;
    return cudnnBackendGetAttribute(*plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                    CUDNN_TYPE_INT64, 1, &count, workspace_bytes);
}

inline cudaDataType_t element_type(cudnnDataType_t type)
{
    return type == CUDNN_DATA_BFLOAT16 ? CUDA_R_16BF
           : type == CUDNN_DATA_HALF   ? CUDA_R_16F
                                       : CUDA_R_32F;
}

} // namespace cudnn_test

#endif
