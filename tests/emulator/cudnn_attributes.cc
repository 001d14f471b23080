/* Emulated cuDNN: which attributes descriptors have, and how they are set and read. */
#include "cudnn_descriptor.h"

#include <algorithm>
#include <cstring>

namespace emulated
{

namespace
{

enum access : unsigned { READ = 1, WRITE = 2 };

struct attribute_rule {
    cudnnBackendDescriptorType_t of;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t most; /* elements; at least one */
    unsigned access;
};

enum { MANY = 64 };

/* Descriptors, shortened. */
constexpr auto TENSOR = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
constexpr auto CONVOLUTION = CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR;
constexpr auto POINTWISE = CUDNN_BACKEND_POINTWISE_DESCRIPTOR;
constexpr auto FORWARD = CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
constexpr auto BWD_DATA = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
constexpr auto BWD_FILTER = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
constexpr auto OPERATION_POINTWISE = CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
constexpr auto GRAPH = CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR;
constexpr auto HEURISTIC = CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR;
constexpr auto ENGINE = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
constexpr auto CONFIGURATION = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
constexpr auto PLAN = CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
constexpr auto PACK = CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR;
constexpr auto DESCRIPTOR = CUDNN_TYPE_BACKEND_DESCRIPTOR;

const attribute_rule RULES[] = {
    {TENSOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, READ | WRITE},
    {TENSOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, READ | WRITE},
    {TENSOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 12, READ | WRITE},
    {TENSOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 12, READ | WRITE},
    {TENSOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, READ | WRITE},
    {TENSOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, READ | WRITE},

    {CONVOLUTION, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, READ | WRITE},
    {CONVOLUTION, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, READ | WRITE},
    {CONVOLUTION, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 3, READ | WRITE},
    {CONVOLUTION, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 3, READ | WRITE},
    {CONVOLUTION, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 3, READ | WRITE},
    {CONVOLUTION, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 3, READ | WRITE},
    {CONVOLUTION, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, READ | WRITE},

    {POINTWISE, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, READ | WRITE},
    {POINTWISE, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, READ | WRITE},
    {POINTWISE, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, CUDNN_TYPE_DOUBLE, 1, READ | WRITE},
    {POINTWISE, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, CUDNN_TYPE_FLOAT, 1, READ | WRITE},
    {POINTWISE, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, CUDNN_TYPE_DOUBLE, 1, READ | WRITE},
    {POINTWISE, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, CUDNN_TYPE_FLOAT, 1, READ | WRITE},
    {POINTWISE, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, CUDNN_TYPE_DOUBLE, 1, READ | WRITE},
    {POINTWISE, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, CUDNN_TYPE_FLOAT, 1, READ | WRITE},

    {FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, READ | WRITE},
    {FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_DOUBLE, 1, READ | WRITE},
    {FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, READ | WRITE},
    {FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_DOUBLE, 1, READ | WRITE},
    {FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, DESCRIPTOR, 1, WRITE},
    {FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, DESCRIPTOR, 1, WRITE},
    {FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, DESCRIPTOR, 1, WRITE},
    {FORWARD, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, DESCRIPTOR, 1, WRITE},

    {BWD_DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_TYPE_FLOAT, 1, READ | WRITE},
    {BWD_DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_TYPE_DOUBLE, 1, READ | WRITE},
    {BWD_DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_TYPE_FLOAT, 1, READ | WRITE},
    {BWD_DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_TYPE_DOUBLE, 1, READ | WRITE},
    {BWD_DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, DESCRIPTOR, 1, WRITE},
    {BWD_DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, DESCRIPTOR, 1, WRITE},
    {BWD_DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, DESCRIPTOR, 1, WRITE},
    {BWD_DATA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, DESCRIPTOR, 1, WRITE},

    {BWD_FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_TYPE_FLOAT, 1,
     READ | WRITE},
    {BWD_FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_TYPE_DOUBLE, 1,
     READ | WRITE},
    {BWD_FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, CUDNN_TYPE_FLOAT, 1,
     READ | WRITE},
    {BWD_FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, CUDNN_TYPE_DOUBLE, 1,
     READ | WRITE},
    {BWD_FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, DESCRIPTOR, 1, WRITE},
    {BWD_FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, DESCRIPTOR, 1, WRITE},
    {BWD_FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, DESCRIPTOR, 1, WRITE},
    {BWD_FILTER, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, DESCRIPTOR, 1, WRITE},

    {OPERATION_POINTWISE, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, DESCRIPTOR, 1, WRITE},
    {OPERATION_POINTWISE, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, DESCRIPTOR, 1, WRITE},
    {OPERATION_POINTWISE, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, DESCRIPTOR, 1, WRITE},
    {OPERATION_POINTWISE, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, DESCRIPTOR, 1, WRITE},
    {OPERATION_POINTWISE, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1, READ | WRITE},
    {OPERATION_POINTWISE, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_DOUBLE, 1,
     READ | WRITE},
    {OPERATION_POINTWISE, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, READ | WRITE},
    {OPERATION_POINTWISE, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_DOUBLE, 1,
     READ | WRITE},

    {GRAPH, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, READ | WRITE},
    {GRAPH, CUDNN_ATTR_OPERATIONGRAPH_OPS, DESCRIPTOR, MANY, WRITE},
    {GRAPH, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, CUDNN_TYPE_INT64, 1, READ},

    {HEURISTIC, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, READ | WRITE},
    {HEURISTIC, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, DESCRIPTOR, 1, WRITE},
    {HEURISTIC, CUDNN_ATTR_ENGINEHEUR_RESULTS, DESCRIPTOR, MANY, READ},

    {ENGINE, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, DESCRIPTOR, 1, WRITE},
    {ENGINE, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, READ | WRITE},
    {ENGINE, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, MANY, READ},
    {ENGINE, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, MANY, READ},

    {CONFIGURATION, CUDNN_ATTR_ENGINECFG_ENGINE, DESCRIPTOR, 1, READ | WRITE},

    {PLAN, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, READ | WRITE},
    {PLAN, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, DESCRIPTOR, 1, WRITE},
    {PLAN, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, READ},

    {PACK, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, MANY, READ | WRITE},
    {PACK, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, MANY, READ | WRITE},
    {PACK, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, READ | WRITE},
};

size_t element_size(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
        return 8;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return sizeof(void *);
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    default:
        return 4; /* enums and float */
    }
}

/* The rule for the attribute, of this type if there is one. */
const attribute_rule *find_rule(const descriptor &d, cudnnBackendAttributeName_t name,
                                cudnnBackendAttributeType_t type)
{
    const attribute_rule *found = nullptr;
    for (const attribute_rule &rule : RULES)
        if (rule.of == d.type && rule.name == name && (found == nullptr || rule.type == type))
            found = &rule;
    return found;
}

cudnnStatus_t check_access(const descriptor &d, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t type, access wanted)
{
    const attribute_rule *rule = find_rule(d, name, type);
    if (rule == nullptr || (rule->access & wanted) == 0)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "descriptor %d: attribute %d cannot be %s",
                             d.type, name, wanted == READ ? "read" : "set");
    if (rule->type != type)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
                             "attribute %d is of type %d, not %d", name, rule->type, type);
    return CUDNN_STATUS_SUCCESS;
}

/* Fills descriptors of the caller's with copies. */
cudnnStatus_t copy_descriptors(const attribute_value &value, int64_t count, void *elements)
{
    auto *targets = static_cast<cudnnBackendDescriptor_t *>(elements);
    for (int64_t i = 0; i < count; i++) {
        auto *target = static_cast<descriptor *>(targets[i]);
        const descriptor &source = *value.descriptors[static_cast<size_t>(i)];
        if (target == nullptr)
            return cudnn_failure(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "element %lld is null",
                                 static_cast<long long>(i));
        if (target->type != source.type)
            return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "element %lld is a descriptor %d, not %d",
                                 static_cast<long long>(i), target->type, source.type);
        *target = source;
    }
    return CUDNN_STATUS_SUCCESS;
}

} // namespace

cudnnStatus_t set_attribute(descriptor &d, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t count, const void *elements)
{
    if (d.finalized)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "attribute %d: already finalized", name);
    if (cudnnStatus_t status = check_access(d, name, type, WRITE))
        return status;
    if (count < 1 || count > find_rule(d, name, type)->most || elements == nullptr)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "attribute %d: %lld elements at %p", name,
                             static_cast<long long>(count), elements);
    attribute_value value = {type, count, {}, {}};
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        auto *sources = static_cast<const cudnnBackendDescriptor_t *>(elements);
        for (int64_t i = 0; i < count; i++) {
            if (sources[i] == nullptr)
                return cudnn_failure(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "attribute %d", name);
            value.descriptors.push_back(
                std::make_shared<descriptor>(*static_cast<const descriptor *>(sources[i])));
        }
    } else {
        const char *bytes = static_cast<const char *>(elements);
        value.bytes.assign(bytes, bytes + static_cast<size_t>(count) * element_size(type));
    }
    d.attributes[name] = std::move(value);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t get_attribute(const descriptor &d, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t requested, int64_t *count,
                            void *elements)
{
    if (!d.finalized)
        return cudnn_failure(CUDNN_STATUS_NOT_INITIALIZED, "attribute %d: not finalized", name);
    if (cudnnStatus_t status = check_access(d, name, type, READ))
        return status;
    if (requested < 0 || (requested > 0 && elements == nullptr))
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "attribute %d: %lld elements to %p", name,
                             static_cast<long long>(requested), elements);
    auto found = d.attributes.find(name);
    if (found == d.attributes.end())
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "attribute %d was not set", name);
    const attribute_value &value = found->second;
    if (value.type != type)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
                             "attribute %d was set as type %d, not %d", name, value.type, type);
    int64_t given = requested == 0 ? value.count : std::min(requested, value.count);
    if (count != nullptr)
        *count = given;
    if (requested == 0)
        return CUDNN_STATUS_SUCCESS;
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        return copy_descriptors(value, given, elements);
    if (given > 0)
        std::memcpy(elements, value.bytes.data(), static_cast<size_t>(given) * element_size(type));
    return CUDNN_STATUS_SUCCESS;
}

double descriptor::number(cudnnBackendAttributeName_t name, double otherwise) const
{
    auto found = attributes.find(name);
    if (found == attributes.end())
        return otherwise;
    return found->second.type == CUDNN_TYPE_DOUBLE ? get<double>(name)
                                                   : static_cast<double>(get<float>(name));
}

bool descriptor::has(cudnnBackendAttributeName_t name) const
{
    return attributes.count(name) > 0;
}

void descriptor::publish(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t value_type,
                         const void *elements, int64_t count)
{
    const char *bytes = static_cast<const char *>(elements);
    attributes[name] = {value_type, count, {}, {}};
    attributes[name].bytes.assign(bytes,
                                  bytes + static_cast<size_t>(count) * element_size(value_type));
}

} // namespace emulated
