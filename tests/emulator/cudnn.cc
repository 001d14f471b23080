/* Emulated cuDNN: its entry points. */
#include "cudnn_descriptor.h"
#include "emulator.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace emulated
{

namespace
{

thread_local char last_error[256] = "";

struct cudnn_call {
    convolution_work work;
    convolution_memory memory;
    convolution_accuracy accuracy;
    void *workspace;
    size_t workspace_bytes;
};

/* The pointer of tensor `spec` in a variant pack; nullptr, noted, if it is not there. */
void *find_pointer(const descriptor &pack, const tensor_spec &spec)
{
    int64_t count = pack.attributes.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).count;
    for (int64_t i = 0; i < count; i++) {
        auto at = static_cast<size_t>(i);
        if (pack.get<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, 0, at) == spec.id)
            return pack.get<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, nullptr, at);
    }
    return nullptr;
}

cudnnStatus_t get_pointer(const descriptor &pack, const tensor_spec &spec, void **out)
{
    *out = find_pointer(pack, spec);
    if (*out == nullptr)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "no pointer for tensor %lld",
                             static_cast<long long>(spec.id));
    if (reinterpret_cast<uintptr_t>(*out) % static_cast<uintptr_t>(spec.alignment) != 0)
        return cudnn_failure(
            CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "tensor %lld is not aligned to %lld bytes",
            static_cast<long long>(spec.id), static_cast<long long>(spec.alignment));
    return CUDNN_STATUS_SUCCESS;
}

const void *result_of(const cudnn_call &call)
{
    return call.work.kind == convolution_kind::forward         ? call.memory.y
           : call.work.kind == convolution_kind::backward_data ? call.memory.x
                                                               : call.memory.w;
}

void check_apart(const cudnn_call &call, const tensor_spec &spec, const void *memory)
{
    const tensor_spec &output = call.work.output();
    const void *result = result_of(call);
    auto a = reinterpret_cast<uintptr_t>(result), b = reinterpret_cast<uintptr_t>(memory);
    if (result != memory && a < b + spec.size_bytes() && b < a + output.size_bytes())
        fatal("cudnnBackendExecute: the result lies on tensor %lld",
              static_cast<long long>(spec.id));
}

void check_memory(const cudnn_call &call)
{
    const convolution_work &work = call.work;
    const convolution_memory &memory = call.memory;
    check_device(memory.x, work.x.size_bytes(), "cudnnBackendExecute: x");
    check_device(memory.w, work.w.size_bytes(), "cudnnBackendExecute: w");
    check_device(memory.y, work.y.size_bytes(), "cudnnBackendExecute: y");
    check_apart(call, work.x, memory.x);
    check_apart(call, work.w, memory.w);
    check_apart(call, work.y, memory.y);
    if (work.bias)
        check_device(memory.bias, work.bias->size_bytes(), "cudnnBackendExecute: the bias");
    if (call.workspace_bytes > 0)
        check_device(call.workspace, call.workspace_bytes, "cudnnBackendExecute: the workspace");
}

void run(const cudnn_call &call)
{
    check_memory(call);
    /* Like the real engines, overwrites the workspace. */
    if (call.workspace_bytes > 0)
        std::memset(call.workspace, 0xFF, call.workspace_bytes);
    run_convolution(call.work, call.memory, call.accuracy);
    memory_written(result_of(call), call.work.output().size_bytes());
}

cudnnStatus_t make_call(const plan_spec &plan, const descriptor &pack, cudnn_call *call)
{
    const convolution_work &work = plan.engine.graph.work;
    *call = {};
    call->work = work;
    call->accuracy = engine_accuracy(plan.engine);
    call->workspace = pack.get<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    call->workspace_bytes = static_cast<size_t>(plan.workspace_bytes);
    void *bias = nullptr;
    if (cudnnStatus_t status = get_pointer(pack, work.x, &call->memory.x))
        return status;
    if (cudnnStatus_t status = get_pointer(pack, work.w, &call->memory.w))
        return status;
    if (cudnnStatus_t status = get_pointer(pack, work.y, &call->memory.y))
        return status;
    if (cudnnStatus_t status =
            work.bias ? get_pointer(pack, *work.bias, &bias) : CUDNN_STATUS_SUCCESS)
        return status;
    call->memory.bias = bias;
    if (plan.workspace_bytes > 0 && call->workspace == nullptr)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a workspace is needed");
    return CUDNN_STATUS_SUCCESS;
}

bool is_known(cudnnBackendDescriptorType_t type)
{
    switch (type) {
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        return true;
    }
    return false;
}

} // namespace

cudnnStatus_t cudnn_failure(cudnnStatus_t status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

cudnnStatus_t finalize(descriptor &d)
{
    switch (d.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        return finalize_tensor(d);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
        return finalize_convolution(d);
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR:
        return finalize_pointwise(d);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        return finalize_convolution_operation(d);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return finalize_pointwise_operation(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        return finalize_graph(d);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        return finalize_heuristic(d);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
        return finalize_engine(d);
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
        return finalize_configuration(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        return finalize_plan(d);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
        return finalize_variant_pack(d);
    }
    return CUDNN_STATUS_INTERNAL_ERROR;
}

} // namespace emulated

using namespace emulated;

size_t cudnnGetVersion()
{
    (void)entry_point(__func__);
    return CUDNN_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    (void)entry_point(__func__);
#define NAME(code) \
    case code: \
        return #code
    switch (status) {
        NAME(CUDNN_STATUS_SUCCESS);
        NAME(CUDNN_STATUS_NOT_INITIALIZED);
        NAME(CUDNN_STATUS_BAD_PARAM);
        NAME(CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
        NAME(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
        NAME(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
        NAME(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
        NAME(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
        NAME(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
        NAME(CUDNN_STATUS_NOT_SUPPORTED);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT);
        NAME(CUDNN_STATUS_INTERNAL_ERROR);
        NAME(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
        NAME(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
        NAME(CUDNN_STATUS_EXECUTION_FAILED);
        NAME(CUDNN_STATUS_EXECUTION_FAILED_CUDART);
    default:
        return "CUDNN_STATUS_UNKNOWN";
    }
#undef NAME
}

void cudnnGetLastErrorString(char *message, size_t max_size)
{
    (void)entry_point(__func__);
    if (message != nullptr && max_size > 0)
        std::snprintf(message, max_size, "%s", last_error);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    if (int code = entry_point(__func__))
        return static_cast<cudnnStatus_t>(code);
    if (handle == nullptr)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnCreate: null");
    if (device_status() != cudaSuccess)
        return cudnn_failure(CUDNN_STATUS_NOT_INITIALIZED, "cudnnCreate: no device that works");
    *handle = new cudnnContext{current_device(), nullptr};
    account("cudnn handle", +1);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    int code = entry_point(__func__);
    if (handle != nullptr) {
        delete handle;
        account("cudnn handle", -1);
    }
    return static_cast<cudnnStatus_t>(code);
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    if (int code = entry_point(__func__))
        return static_cast<cudnnStatus_t>(code);
    if (handle == nullptr)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnSetStream: null");
    if (stream_device(stream) != handle->device)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "cudnnSetStream: of another device");
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *out)
{
    if (int code = entry_point(__func__))
        return static_cast<cudnnStatus_t>(code);
    if (!is_known(type))
        fatal("%s: descriptor %d is not emulated", __func__, static_cast<int>(type));
    if (out == nullptr)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: null", __func__);
    auto *made = new descriptor;
    made->type = type;
    *out = made;
    account("cudnn descriptor", +1);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
    int code = entry_point(__func__);
    if (d == nullptr)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: null", __func__);
    delete static_cast<descriptor *>(d);
    account("cudnn descriptor", -1);
    return static_cast<cudnnStatus_t>(code);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d)
{
    if (int code = entry_point(__func__))
        return static_cast<cudnnStatus_t>(code);
    if (d == nullptr)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: null", __func__);
    auto &one = *static_cast<descriptor *>(d);
    if (one.finalized)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "descriptor %d is finalized", one.type);
    cudnnStatus_t status = finalize(one);
    one.finalized = status == CUDNN_STATUS_SUCCESS;
    return status;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *elements)
{
    if (int code = entry_point(__func__))
        return static_cast<cudnnStatus_t>(code);
    if (d == nullptr)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: null", __func__);
    return set_attribute(*static_cast<descriptor *>(d), name, type, count, elements);
}

cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t d,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t *count, void *elements)
{
    if (int code = entry_point(__func__))
        return static_cast<cudnnStatus_t>(code);
    if (d == nullptr)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: null", __func__);
    return get_attribute(*static_cast<const descriptor *>(d), name, type, requested, count,
                         elements);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant_pack)
{
    if (int code = entry_point(__func__))
        return static_cast<cudnnStatus_t>(code);
    if (handle == nullptr || plan == nullptr || variant_pack == nullptr)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: null", __func__);
    const auto &from = *static_cast<const descriptor *>(plan);
    const auto &pack = *static_cast<const descriptor *>(variant_pack);
    const auto *spec = std::get_if<plan_spec>(&from.made);
    if (spec == nullptr || !pack.finalized || pack.type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                             "%s: plan or variant pack not finalized", __func__);
    cudnn_call call;
    if (cudnnStatus_t status = make_call(*spec, pack, &call))
        return status;
    check_memory(call);
    load_kernel(handle->stream,
                "cudnnBackendExecute " + std::to_string(reinterpret_cast<uintptr_t>(plan)));
    if (cudaError_t error = enqueue(handle->stream, "cudnnBackendExecute", [call] { run(call); }))
        return cudnn_failure(CUDNN_STATUS_EXECUTION_FAILED_CUDART, "%s: error %d of the runtime",
                             __func__, error);
    return CUDNN_STATUS_SUCCESS;
}
