/* Emulated cuDNN: convolutions. */
#ifndef MNIST_DDP_TESTS_EMULATOR_CUDNN_CONVOLUTION_H
#define MNIST_DDP_TESTS_EMULATOR_CUDNN_CONVOLUTION_H

#include <cudnn.h>

#include <array>
#include <cstddef>
#include <optional>

namespace emulated
{

/* Of four dimensions: N C H W of an activation, K C R S of a weight. */
struct tensor_spec {
    cudnnDataType_t type;
    std::array<int64_t, 4> dims, strides;
    int64_t id, alignment;
    bool is_virtual;

    size_t size_bytes() const; /* from the first element to the last, gaps included */
    cudaDataType_t element_type() const;
};

struct convolution_spec {
    cudnnDataType_t compute;
    cudnnConvolutionMode_t mode;
    std::array<int64_t, 2> strides, dilations, before, after; /* of H, W; paddings */

    /* Whether y is what x convolved with w gives. */
    bool fits(const tensor_spec &x, const tensor_spec &w, const tensor_spec &y) const;
};

enum class convolution_kind { forward, backward_data, backward_filter };

/* One of x, w, y is set from the other two: = alpha * convolution + beta * what was there. A
 * forward convolution then adds bias_scale * bias[k] and applies relu, if set. */
struct convolution_work {
    convolution_kind kind;
    convolution_spec shape;
    tensor_spec x, w, y;
    double alpha, beta, bias_scale;
    std::optional<tensor_spec> bias;
    bool relu;

    const tensor_spec &output() const;
};

enum class convolution_accuracy {
    plain,
    tf32,             /* float inputs are rounded to 10 bits of fraction */
    nondeterministic, /* the last bit of a result may differ from time to time */
};

/* Device memory of the tensors. */
struct convolution_memory {
    void *x, *w, *y;
    const void *bias;
};

/* On the device thread. */
void run_convolution(const convolution_work &work, const convolution_memory &memory,
                     convolution_accuracy accuracy);

} // namespace emulated

#endif
