/* Emulated cuDNN: backend descriptors. */
#ifndef MNIST_DDP_TESTS_EMULATOR_CUDNN_DESCRIPTOR_H
#define MNIST_DDP_TESTS_EMULATOR_CUDNN_DESCRIPTOR_H

#include "cudnn_convolution.h"

#include <cstring>
#include <map>
#include <memory>
#include <variant>
#include <vector>

struct cudnnContext {
    int device;
    cudaStream_t stream;
};

namespace emulated
{

struct descriptor;

/* What an attribute was set to: `bytes`, or copies of descriptors. */
struct attribute_value {
    cudnnBackendAttributeType_t type;
    int64_t count;
    std::vector<char> bytes;
    std::vector<std::shared_ptr<const descriptor>> descriptors;
};

struct pointwise_spec {
    cudnnPointwiseMode_t mode;
    bool plain_relu; /* clipped at 0 only */
};

/* y = pointwise(x, b), b broadcast. */
struct pointwise_operation {
    pointwise_spec function;
    tensor_spec x, y;
    std::optional<tensor_spec> b;
    double x_scale, b_scale;
};

/* An operation graph that can be run: what it computes, in one pass. */
struct graph_spec {
    bool understood; /* false: of a pattern that has no engine */
    bool fused;      /* with pointwise operations */
    convolution_work work;
};

struct engine_spec {
    int64_t id;
    graph_spec graph;
};

struct plan_spec {
    engine_spec engine;
    int64_t workspace_bytes;
};

/* finalize() fills `made`: what the attributes say together. */
struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool finalized = false;
    std::map<cudnnBackendAttributeName_t, attribute_value> attributes;
    std::variant<std::monostate, tensor_spec, convolution_spec, pointwise_spec, convolution_work,
                 pointwise_operation, graph_spec, engine_spec, std::vector<engine_spec>, plan_spec>
        made;

    bool has(cudnnBackendAttributeName_t name) const;

    /* Element `i`; `otherwise` if the attribute is not set. */
    template <typename T>
    T get(cudnnBackendAttributeName_t name, T otherwise = T{}, size_t i = 0) const;

    /* A float or a double. */
    double number(cudnnBackendAttributeName_t name, double otherwise) const;

    /* The finalized value of the descriptor in attribute `name`; nullptr if there is none, or it is
     * not finalized, or it is of another type. */
    template <typename T> const T *get_made(cudnnBackendAttributeName_t name, size_t i = 0) const;

    /* Makes an attribute readable. */
    void publish(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t value_type,
                 const void *elements, int64_t count);
};

/* Notes why for cudnnGetLastErrorString, and returns `status`. */
cudnnStatus_t cudnn_failure(cudnnStatus_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

cudnnStatus_t set_attribute(descriptor &d, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t count, const void *elements);
cudnnStatus_t get_attribute(const descriptor &d, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t requested, int64_t *count,
                            void *elements);
cudnnStatus_t finalize(descriptor &d);

/* Parts of finalize(): tensors and operations; graphs, engines and plans. */
cudnnStatus_t finalize_tensor(descriptor &d);
cudnnStatus_t finalize_convolution(descriptor &d);
cudnnStatus_t finalize_pointwise(descriptor &d);
cudnnStatus_t finalize_convolution_operation(descriptor &d);
cudnnStatus_t finalize_pointwise_operation(descriptor &d);
cudnnStatus_t finalize_graph(descriptor &d);
cudnnStatus_t finalize_heuristic(descriptor &d);
cudnnStatus_t finalize_engine(descriptor &d);
cudnnStatus_t finalize_configuration(descriptor &d);
cudnnStatus_t finalize_plan(descriptor &d);
cudnnStatus_t finalize_variant_pack(descriptor &d);

convolution_accuracy engine_accuracy(const engine_spec &engine);

template <typename T>
T descriptor::get(cudnnBackendAttributeName_t name, T otherwise, size_t i) const
{
    auto found = attributes.find(name);
    if (found == attributes.end() || found->second.bytes.size() < (i + 1) * sizeof(T))
        return otherwise;
    T value;
    std::memcpy(&value, found->second.bytes.data() + i * sizeof(T), sizeof value);
    return value;
}

template <typename T>
const T *descriptor::get_made(cudnnBackendAttributeName_t name, size_t i) const
{
    auto found = attributes.find(name);
    if (found == attributes.end() || found->second.descriptors.size() <= i ||
        !found->second.descriptors[i]->finalized)
        return nullptr;
    return std::get_if<T>(&found->second.descriptors[i]->made);
}

} // namespace emulated

#endif
