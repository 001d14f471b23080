/* Copies and fills. From and to pinned memory they are asynchronous; what is pageable is read at
 * the call, and written before the call returns. */
#include "streams.h"

#include <cstring>
#include <map>

namespace emulated
{

namespace
{

struct copy_request {
    void *to;
    const void *from;
    size_t size_bytes;
    bool from_device, to_device;
};

void check_end(const void *memory, size_t size_bytes, bool of_device)
{
    if (of_device)
        check_device(memory, size_bytes, "cudaMemcpyAsync");
    else if (!is_pinned_memory(memory, size_bytes))
        fatal("cudaMemcpyAsync: the pinned memory %p was freed before the copy ran", memory);
}

/* On the device thread. */
void copy(const copy_request &r)
{
    check_end(r.to, r.size_bytes, r.to_device);
    check_end(r.from, r.size_bytes, r.from_device);
    std::memcpy(r.to, r.from, r.size_bytes);
    if (r.to_device)
        memory_written(r.to, r.size_bytes);
}

/* cudaSuccess, and whether each end is device memory; or what is wrong. */
cudaError_t find_ends(copy_request *r, cudaMemcpyKind kind)
{
    r->to_device = is_device_memory(r->to, r->size_bytes);
    r->from_device = is_device_memory(r->from, r->size_bytes);
    bool to = r->to_device, from = r->from_device;
    switch (kind) {
    case cudaMemcpyHostToHost:
        to = from = false;
        break;
    case cudaMemcpyHostToDevice:
        to = true;
        from = false;
        break;
    case cudaMemcpyDeviceToHost:
        to = false;
        from = true;
        break;
    case cudaMemcpyDeviceToDevice:
        to = from = true;
        break;
    case cudaMemcpyDefault:
        break;
    default:
        return cudaErrorInvalidMemcpyDirection;
    }
    if (to != r->to_device || from != r->from_device)
        return cudaErrorInvalidValue;
    const char *a = static_cast<const char *>(r->from), *b = static_cast<const char *>(r->to);
    if (a < b + r->size_bytes && b < a + r->size_bytes)
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

/* Whether a host end is pageable; pinned in part is an error. */
cudaError_t find_pageable(const void *memory, size_t size_bytes, bool device, bool *pageable)
{
    *pageable = !device && !is_pinned_memory(memory, size_bytes);
    return *pageable && overlaps_pinned_memory(memory, size_bytes) ? cudaErrorInvalidValue
                                                                   : cudaSuccess;
}

cudaError_t copy_pageable(const copy_request &r, cudaStream_t stream, bool from, bool to)
{
    std::vector<char> source, target;
    if (from)
        source.assign(static_cast<const char *>(r.from),
                      static_cast<const char *>(r.from) + r.size_bytes);
    auto staged = std::make_shared<std::vector<char>>(std::move(source));
    count_work("wait", "cudaMemcpyAsync");
    cudaError_t error = enqueue(stream, "cudaMemcpyAsync", [=] {
        if (!to)
            check_end(r.to, r.size_bytes, r.to_device);
        if (!from)
            check_end(r.from, r.size_bytes, r.from_device);
        std::memcpy(r.to, from ? staged->data() : r.from, r.size_bytes);
        if (r.to_device)
            memory_written(r.to, r.size_bytes);
    });
    if (error == cudaSuccess && to) {
        wait_until_idle(stream, "cudaMemcpyAsync");
        error = sticky_error();
    }
    return error;
}

/* The fill runs on a stream of its own for each device: as unordered with other streams as CUDA's
 * is with those that were made with cudaStreamNonBlocking. Never destroyed. */
cudaStream_t fill_stream()
{
    static std::mutex lock;
    static auto *streams = new std::map<int, cudaStream_t>;
    std::lock_guard<std::mutex> hold(lock);
    auto found = streams->find(current_device());
    if (found == streams->end())
        found = streams->emplace(current_device(), make_stream()).first;
    return found->second;
}

cudaError_t fill(void *memory, int value, size_t size_bytes, cudaStream_t stream)
{
    if (size_bytes == 0)
        return cudaSuccess;
    if (!is_device_memory(memory, size_bytes))
        return cudaErrorInvalidValue;
    return enqueue(stream, "cudaMemset", [=] {
        check_device(memory, size_bytes, "cudaMemset");
        std::memset(memory, value, size_bytes);
        memory_written(memory, size_bytes);
    });
}

} // namespace

} // namespace emulated

using namespace emulated;

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    if (cudaError_t error = check_stream(stream, __func__))
        return record(error);
    if (size_bytes == 0)
        return cudaSuccess;
    copy_request r = {to, from, size_bytes, false, false};
    bool from_pageable = false, to_pageable = false;
    cudaError_t error = find_ends(&r, kind);
    if (error == cudaSuccess)
        error = find_pageable(from, size_bytes, r.from_device, &from_pageable);
    if (error == cudaSuccess)
        error = find_pageable(to, size_bytes, r.to_device, &to_pageable);
    if (error != cudaSuccess)
        return record(error);
    if (!from_pageable && !to_pageable)
        return record(enqueue(stream, __func__, [r] { copy(r); }));
    if (is_capturing(stream)) {
        break_captures_of_this_thread();
        return record(cudaErrorStreamCaptureUnsupported);
    }
    return record(copy_pageable(r, stream, from_pageable, to_pageable));
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t size_bytes, cudaStream_t stream)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    if (cudaError_t error = check_stream(stream, __func__))
        return record(error);
    return record(fill(memory, value, size_bytes, stream));
}

cudaError_t cudaMemset(void *memory, int value, size_t size_bytes)
{
    if (cudaError_t error = begin_unsafe_call(__func__))
        return error;
    cudaError_t error = fill(memory, value, size_bytes, fill_stream());
    count_work("wait", __func__);
    if (error == cudaSuccess)
        wait_until_idle(fill_stream(), __func__);
    return record(error);
}
