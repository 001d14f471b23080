/* A convolution of one image is a matrix product: the image's patches (P*Q, R*S*C), one row per
 * output position, times the weights (K, R*S*C) transposed. This is im2col. The data's gradient is
 * the transposed product, with overlapping patches added up (col2im). The weights' gradient is dy
 * transposed times the patches, summed over images in their order. Images are (H, W, C) here. */
#include "cudnn_convolution.h"
#include "cublaslt_product.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace emulated
{

namespace
{

size_t as_size(int64_t value)
{
    return static_cast<size_t>(value);
}

/* Sizes of one image's product. */
struct patches {
    explicit patches(const convolution_work &work)
        : shape(work.shape), height(work.x.dims[2]), width(work.x.dims[3]),
          channels(work.x.dims[1]), out_height(work.y.dims[2]), out_width(work.y.dims[3]),
          kernel_height(work.w.dims[2]), kernel_width(work.w.dims[3])
    {
    }

    size_t rows() const
    {
        return as_size(out_height * out_width);
    }

    size_t cols() const
    {
        return as_size(kernel_height * kernel_width * channels);
    }

    /* Calls fn(offset in the patches, offset in the image) for each run of `channels` elements that
     * lies inside the image. */
    template <typename Fn> void for_each_run(Fn fn) const
    {
        size_t at = 0;
        for (int64_t p = 0; p < out_height; p++)
            for (int64_t q = 0; q < out_width; q++)
                for (int64_t r = 0; r < kernel_height; r++)
                    for (int64_t s = 0; s < kernel_width; s++, at += as_size(channels)) {
                        int64_t h = p * shape.strides[0] + r * shape.dilations[0] - shape.before[0];
                        int64_t w = q * shape.strides[1] + s * shape.dilations[1] - shape.before[1];
                        if (h >= 0 && h < height && w >= 0 && w < width)
                            fn(at, as_size((h * width + w) * channels));
                    }
    }

    const convolution_spec &shape;
    int64_t height, width, channels, out_height, out_width, kernel_height, kernel_width;
};

/* Item n of a tensor (an image; a weight's output channel) to and from (H, W, C) floats. */
class item_view
{
  public:
    item_view(const tensor_spec &tensor, void *memory)
        : spec(tensor), type(tensor.element_type()), width_bytes(element_bytes(type)),
          base(static_cast<char *>(memory)), line(as_size(tensor.dims[3]))
    {
    }

    size_t count() const
    {
        return as_size(spec.dims[1] * spec.dims[2] * spec.dims[3]);
    }

    void load(int64_t n, float *to)
    {
        if (is_dense()) {
            load_floats(item(n), type, count(), to);
            return;
        }
        each_line(
            [&](int64_t c, int64_t h, float *values, char *at) {
                if (spec.strides[3] == 1)
                    load_floats(at, type, line.size(), values);
                else
                    for (size_t w = 0; w < line.size(); w++)
                        load_floats(at + w * as_size(spec.strides[3]) * width_bytes, type, 1,
                                    &values[w]);
                for (size_t w = 0; w < line.size(); w++)
                    to[place(c, h, w)] = values[w];
            },
            n);
    }

    void store(int64_t n, const float *from)
    {
        if (is_dense()) {
            store_floats(from, count(), type, item(n));
            return;
        }
        each_line(
            [&](int64_t c, int64_t h, float *values, char *at) {
                for (size_t w = 0; w < line.size(); w++)
                    values[w] = from[place(c, h, w)];
                if (spec.strides[3] == 1)
                    store_floats(values, line.size(), type, at);
                else
                    for (size_t w = 0; w < line.size(); w++)
                        store_floats(&values[w], 1, type,
                                     at + w * as_size(spec.strides[3]) * width_bytes);
            },
            n);
    }

  private:
    bool is_dense() const
    {
        return spec.strides[1] == 1 && spec.strides[3] == spec.dims[1] &&
               spec.strides[2] == spec.dims[1] * spec.dims[3];
    }

    char *item(int64_t n) const
    {
        return base + as_size(n * spec.strides[0]) * width_bytes;
    }

    size_t place(int64_t c, int64_t h, size_t w) const
    {
        return as_size(h * spec.dims[3] + static_cast<int64_t>(w)) * as_size(spec.dims[1]) +
               as_size(c);
    }

    template <typename Fn> void each_line(Fn fn, int64_t n)
    {
        for (int64_t c = 0; c < spec.dims[1]; c++)
            for (int64_t h = 0; h < spec.dims[2]; h++)
                fn(c, h, line.data(),
                   item(n) + as_size(c * spec.strides[1] + h * spec.strides[2]) * width_bytes);
    }

    const tensor_spec &spec;
    cudaDataType_t type;
    size_t width_bytes;
    char *base;
    std::vector<float> line;
};

/* One run of a convolution. */
class convolver
{
  public:
    convolver(const convolution_work &work_, const convolution_memory &memory,
              convolution_accuracy accuracy_)
        : work(work_), accuracy(accuracy_), grid(work_), x(work.x, memory.x), w(work.w, memory.w),
          y(work.y, memory.y), outputs(as_size(work.w.dims[0])),
          weights(make_floats(outputs * grid.cols())), image(make_floats(x.count())),
          unrolled(make_floats(grid.rows() * grid.cols())), result(make_floats(y.count())),
          bias(outputs, 0.0f)
    {
        if (work.bias)
            load_bias(memory.bias);
    }

    void forward()
    {
        load_weights();
        for (int64_t n = 0; n < work.x.dims[0]; n++) {
            unroll(n);
            std::fill_n(result.get(), y.count(), 0.0f);
            multiply_add(grid.rows(), outputs, grid.cols(), {unrolled.get(), columns(), 1},
                         {weights.get(), 1, columns()}, result.get());
            blend(y, n, result.get());
            add_bias_and_relu(result.get());
            y.store(n, result.get());
        }
    }

    void backward_data()
    {
        load_weights();
        for (int64_t n = 0; n < work.x.dims[0]; n++) {
            load_input(y, n, result.get());
            std::fill_n(unrolled.get(), grid.rows() * grid.cols(), 0.0f);
            multiply_add(grid.rows(), grid.cols(), outputs, {result.get(), output_columns(), 1},
                         {weights.get(), columns(), 1}, unrolled.get());
            std::fill_n(image.get(), x.count(), 0.0f);
            grid.for_each_run([&](size_t from, size_t to) {
                for (size_t c = 0; c < as_size(grid.channels); c++)
                    image[to + c] += unrolled[from + c];
            });
            blend(x, n, image.get());
            x.store(n, image.get());
        }
    }

    void backward_filter()
    {
        std::fill_n(weights.get(), outputs * grid.cols(), 0.0f);
        for (int64_t n = 0; n < work.x.dims[0]; n++) {
            unroll(n);
            load_input(y, n, result.get());
            multiply_add(outputs, grid.cols(), grid.rows(), {result.get(), 1, output_columns()},
                         {unrolled.get(), columns(), 1}, weights.get());
        }
        for (int64_t k = 0; k < work.w.dims[0]; k++) {
            float *values = weights.get() + as_size(k) * grid.cols();
            blend(w, k, values);
            w.store(k, values);
        }
    }

  private:
    ptrdiff_t columns() const
    {
        return static_cast<ptrdiff_t>(grid.cols());
    }

    ptrdiff_t output_columns() const
    {
        return static_cast<ptrdiff_t>(outputs);
    }

    void load_input(item_view &from, int64_t n, float *to)
    {
        from.load(n, to);
        if (accuracy == convolution_accuracy::tf32)
            round_to_tf32(to, from.count());
    }

    void load_weights()
    {
        for (int64_t k = 0; k < work.w.dims[0]; k++)
            load_input(w, k, weights.get() + as_size(k) * grid.cols());
    }

    void load_bias(const void *memory)
    {
        const tensor_spec &spec = *work.bias;
        cudaDataType_t type = spec.element_type();
        for (size_t k = 0; k < outputs; k++)
            load_floats(static_cast<const char *>(memory) +
                            k * as_size(spec.strides[1]) * element_bytes(type),
                        type, 1, &bias[k]);
    }

    void unroll(int64_t n)
    {
        load_input(x, n, image.get());
        std::fill_n(unrolled.get(), grid.rows() * grid.cols(), 0.0f);
        size_t run_bytes = as_size(grid.channels) * sizeof(float);
        grid.for_each_run([&](size_t to, size_t from) {
            std::memcpy(unrolled.get() + to, image.get() + from, run_bytes);
        });
    }

    /* values = alpha * values + beta * item n of `to`. */
    void blend(item_view &to, int64_t n, float *values)
    {
        auto alpha = static_cast<float>(work.alpha), beta = static_cast<float>(work.beta);
        std::vector<float> old(work.beta != 0.0 ? to.count() : 0);
        if (!old.empty())
            to.load(n, old.data());
        for (size_t i = 0; i < to.count(); i++) {
            values[i] *= alpha;
            if (!old.empty())
                values[i] += beta * old[i];
            if (accuracy == convolution_accuracy::nondeterministic)
                disturb(&values[i]);
        }
    }

    void add_bias_and_relu(float *values)
    {
        auto scale = static_cast<float>(work.bias_scale);
        for (size_t i = 0; i < grid.rows(); i++)
            for (size_t k = 0; k < outputs; k++) {
                float &value = values[i * outputs + k];
                if (work.bias)
                    value += scale * bias[k];
                if (work.relu)
                    value = value > 0.0f ? value : 0.0f;
            }
    }

    /* By about the last bit of what is stored. */
    void disturb(float *value)
    {
        static std::minstd_rand random(std::random_device{}());
        if (random() % 2 == 0)
            *value *= work.output().type == CUDNN_DATA_FLOAT ? 1.0f - 0x1p-23f : 1.0f - 0x1p-8f;
    }

    const convolution_work &work;
    convolution_accuracy accuracy;
    patches grid;
    item_view x, w, y;
    size_t outputs;
    floats weights;  /* (K, R*S*C) */
    floats image;    /* (H, W, C) of x */
    floats unrolled; /* (P*Q, R*S*C) */
    floats result;   /* (P*Q, K) of y */
    std::vector<float> bias;
};

} // namespace

size_t tensor_spec::size_bytes() const
{
    int64_t last = 0;
    for (size_t i = 0; i < dims.size(); i++)
        last += (dims[i] - 1) * strides[i];
    return as_size(last + 1) * element_bytes(element_type());
}

cudaDataType_t tensor_spec::element_type() const
{
    return type == CUDNN_DATA_BFLOAT16 ? CUDA_R_16BF
           : type == CUDNN_DATA_HALF   ? CUDA_R_16F
                                       : CUDA_R_32F;
}

bool convolution_spec::fits(const tensor_spec &x, const tensor_spec &w, const tensor_spec &y) const
{
    if (x.dims[1] != w.dims[1] || y.dims[1] != w.dims[0] || x.dims[0] != y.dims[0])
        return false;
    for (size_t i = 0; i < 2; i++) {
        int64_t padded = x.dims[2 + i] + before[i] + after[i];
        int64_t covered = dilations[i] * (w.dims[2 + i] - 1) + 1;
        if (padded < covered || y.dims[2 + i] != (padded - covered) / strides[i] + 1)
            return false;
    }
    return true;
}

const tensor_spec &convolution_work::output() const
{
    return kind == convolution_kind::forward ? y : kind == convolution_kind::backward_data ? x : w;
}

void run_convolution(const convolution_work &work, const convolution_memory &memory,
                     convolution_accuracy accuracy)
{
    convolver run(work, memory, accuracy);
    if (work.kind == convolution_kind::forward)
        run.forward();
    else if (work.kind == convolution_kind::backward_data)
        run.backward_data();
    else
        run.backward_filter();
}

} // namespace emulated
