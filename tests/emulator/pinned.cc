/* Pinned host memory. */
#include "runtime.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace emulated
{

namespace
{

enum { PAGE = 4096, UNINITIALISED = 0xFF };

struct pinned_piece {
    size_t size_bytes;
    unsigned flags;
    bool registered; /* the caller's own memory */
};

struct pinned_memory {
    std::mutex lock;
    std::map<uintptr_t, pinned_piece> pieces;
};

pinned_memory &all_pinned()
{
    static pinned_memory *all = new pinned_memory;
    return *all;
}

/* The lock is held. */
const pinned_piece *find(const pinned_memory &all, uintptr_t address, uintptr_t *start)
{
    auto after = all.pieces.upper_bound(address);
    if (after == all.pieces.begin())
        return nullptr;
    auto found = std::prev(after);
    *start = found->first;
    return address - found->first <= found->second.size_bytes ? &found->second : nullptr;
}

bool overlaps(const pinned_memory &all, uintptr_t start, size_t size_bytes)
{
    auto next = all.pieces.lower_bound(start);
    if (next != all.pieces.end() && next->first - start < size_bytes)
        return true;
    return next != all.pieces.begin() &&
           start - std::prev(next)->first < std::prev(next)->second.size_bytes;
}

/* Whether a page of it holds a byte of a piece. The lock is held. */
bool shares_page(const pinned_memory &all, uintptr_t start, size_t size_bytes)
{
    uintptr_t first = start / PAGE, last = (start + size_bytes - 1) / PAGE;
    return std::any_of(all.pieces.begin(), all.pieces.end(), [=](const auto &one) {
        return one.first / PAGE <= last && (one.first + one.second.size_bytes - 1) / PAGE >= first;
    });
}

/* cudaSuccess if a piece of that kind started there; it is no longer known then. */
cudaError_t forget(void *memory, bool registered)
{
    pinned_memory &all = all_pinned();
    std::lock_guard<std::mutex> hold(all.lock);
    auto found = all.pieces.find(reinterpret_cast<uintptr_t>(memory));
    if (found == all.pieces.end() || found->second.registered != registered)
        return registered ? cudaErrorHostMemoryNotRegistered : cudaErrorInvalidValue;
    all.pieces.erase(found);
    return cudaSuccess;
}

} // namespace

bool is_pinned_memory(const void *memory, size_t size_bytes)
{
    pinned_memory &all = all_pinned();
    std::lock_guard<std::mutex> hold(all.lock);
    uintptr_t address = reinterpret_cast<uintptr_t>(memory), start;
    const pinned_piece *piece = find(all, address, &start);
    return piece != nullptr && size_bytes <= piece->size_bytes - (address - start);
}

bool overlaps_pinned_memory(const void *memory, size_t size_bytes)
{
    pinned_memory &all = all_pinned();
    std::lock_guard<std::mutex> hold(all.lock);
    return overlaps(all, reinterpret_cast<uintptr_t>(memory), size_bytes);
}

} // namespace emulated

using namespace emulated;

cudaError_t cudaHostAlloc(void **out, size_t size_bytes, unsigned int flags)
{
    if (cudaError_t error = begin_unsafe_call(__func__))
        return error;
    const unsigned known = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
    *out = nullptr;
    if ((flags & ~known) != 0)
        return record(cudaErrorInvalidValue);
    if (size_bytes == 0)
        return cudaSuccess;
    void *memory = nullptr;
    size_t whole_pages = (size_bytes + PAGE - 1) / PAGE * PAGE;
    if (posix_memalign(&memory, PAGE, whole_pages) != 0)
        return record(cudaErrorMemoryAllocation);
    std::memset(memory, UNINITIALISED, size_bytes);
    pinned_memory &all = all_pinned();
    std::lock_guard<std::mutex> hold(all.lock);
    all.pieces[reinterpret_cast<uintptr_t>(memory)] = {size_bytes, flags, false};
    account("pinned allocation", 1);
    *out = memory;
    return cudaSuccess;
}

/* Waits for all work first, as CUDA's may. */
cudaError_t cudaFreeHost(void *memory)
{
    cudaError_t error = begin_unsafe_call(__func__);
    if (error == cudaErrorStreamCaptureUnsupported || memory == nullptr)
        return error;
    wait_until_device_is_idle(current_device(), __func__);
    if (cudaError_t unknown = forget(memory, false))
        return record(unknown);
    std::free(memory);
    account("pinned allocation", -1);
    return error;
}

/* Pages are locked, not bytes: two registrations that share one are a mistake that CUDA may notice.
 */
cudaError_t cudaHostRegister(void *memory, size_t size_bytes, unsigned int flags)
{
    if (cudaError_t error = begin_unsafe_call(__func__))
        return error;
    const unsigned known =
        cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly;
    if (memory == nullptr || size_bytes == 0 || (flags & ~known) != 0)
        return record(cudaErrorInvalidValue);
    pinned_memory &all = all_pinned();
    std::lock_guard<std::mutex> hold(all.lock);
    uintptr_t start = reinterpret_cast<uintptr_t>(memory);
    if (shares_page(all, start, size_bytes))
        return record(cudaErrorHostMemoryAlreadyRegistered);
    all.pieces[start] = {size_bytes, flags, true};
    account("host registration", 1);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
    cudaError_t error = begin_unsafe_call(__func__);
    if (error == cudaErrorStreamCaptureUnsupported)
        return error;
    wait_until_device_is_idle(current_device(), __func__);
    if (cudaError_t unknown = forget(memory, true))
        return record(unknown);
    account("host registration", -1);
    return error;
}

cudaError_t cudaHostGetDevicePointer(void **device_memory, void *host_memory, unsigned int flags)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    pinned_memory &all = all_pinned();
    std::lock_guard<std::mutex> hold(all.lock);
    uintptr_t start;
    const pinned_piece *piece = find(all, reinterpret_cast<uintptr_t>(host_memory), &start);
    const unsigned mapped = cudaHostAllocMapped; /* cudaHostRegisterMapped is the same bit */
    if (flags != 0 || piece == nullptr || (piece->flags & mapped) == 0)
        return record(cudaErrorInvalidValue);
    *device_memory = host_memory;
    return cudaSuccess;
}
