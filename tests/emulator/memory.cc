/* Device memory: every allocation has pages of its own between guard pages, so that most accesses
 * beside it fault. The rest of its own pages is checked after each operation. Freed memory stays
 * unreadable for a while. */
#include "runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <sys/mman.h>

#ifdef EMULATED_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace emulated
{

namespace
{

constexpr size_t PAGE = 4096;
constexpr size_t ALIGNMENT = 256;      /* of what cudaMalloc returns, and no more */
constexpr size_t CHECKED_GUARD = 256;  /* bytes before an allocation; there are fewer after it */
constexpr size_t KEPT_AFTER_FREE = 64; /* allocations */
constexpr unsigned char UNINITIALISED = 0xFF; /* NaN as float, bfloat16 and half */
constexpr unsigned char GUARD = 0xA5;

struct allocation {
    uintptr_t start;
    size_t size_bytes;
    uintptr_t pages; /* the mapping, its first and last page untouchable */
    size_t pages_bytes;
    int device;
};

struct memory {
    std::mutex lock;
    std::map<uintptr_t, allocation> live; /* by the mapping's address */
    std::deque<allocation> freed;
    std::map<int, size_t> used; /* bytes of each device */
};

memory &all_memory()
{
    static memory *all = new memory;
    return *all;
}

size_t round_up(size_t value, size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* The live allocation on whose mapping `address` lies. The lock is held. */
const allocation *find(const memory &all, uintptr_t address)
{
    auto after = all.live.upper_bound(address);
    if (after == all.live.begin())
        return nullptr;
    const allocation &a = std::prev(after)->second;
    return address < a.pages + a.pages_bytes ? &a : nullptr;
}

void *pointer(uintptr_t address)
{
    return reinterpret_cast<void *>(address); // NOLINT
}

/* The caller's thread may write the pages still. */
void fill(const allocation &a)
{
    uintptr_t end = a.start + a.size_bytes, last = a.pages + a.pages_bytes - PAGE;
    std::memset(pointer(a.pages + PAGE), GUARD, a.pages_bytes - 2 * PAGE);
    std::memset(pointer(a.start), UNINITIALISED, a.size_bytes);
#ifdef EMULATED_ASAN
    ASAN_POISON_MEMORY_REGION(pointer(a.pages + PAGE), a.start - a.pages - PAGE);
    ASAN_POISON_MEMORY_REGION(pointer(end), last - end);
#else
    (void)end;
    (void)last;
#endif
}

/* AddressSanitizer watches the guards by itself, and more closely. */
void check_guard(const allocation &a, const char *name)
{
#ifdef EMULATED_ASAN
    (void)a;
    (void)name;
#else
    uintptr_t end = a.start + a.size_bytes, last = a.pages + a.pages_bytes - PAGE;
    uintptr_t first = std::max(a.pages + PAGE, a.start - CHECKED_GUARD);
    for (uintptr_t at = first; at < last; at++) {
        if (at == a.start)
            at = end;
        if (at < last && *static_cast<const unsigned char *>(pointer(at)) != GUARD)
            fatal("%s wrote out of bounds: %ld bytes from the start of an allocation of %zu bytes",
                  name, static_cast<long>(at - a.start), a.size_bytes);
    }
#endif
}

void discard(const allocation &a)
{
#ifdef EMULATED_ASAN
    ASAN_UNPOISON_MEMORY_REGION(pointer(a.pages), a.pages_bytes);
#endif
    munmap(pointer(a.pages), a.pages_bytes);
}

/* Sets *out to a new piece of device memory. The lock is held. */
bool allocate(memory &all, size_t size_bytes, allocation *out)
{
    size_t spanned = round_up(size_bytes, ALIGNMENT), inner = round_up(spanned, PAGE);
    void *pages = mmap(nullptr, inner + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return false;
    allocation a = {};
    a.pages = reinterpret_cast<uintptr_t>(pages);
    a.pages_bytes = inner + 2 * PAGE;
    a.start = a.pages + PAGE + inner - spanned;
    a.size_bytes = size_bytes;
    a.device = current_device();
    if (mprotect(pointer(a.pages + PAGE), inner, PROT_READ | PROT_WRITE) != 0) {
        munmap(pages, a.pages_bytes);
        return false;
    }
    fill(a);
    protect_device_memory(pointer(a.pages + PAGE), inner);
    all.used[a.device] += size_bytes;
    all.live[a.pages] = a;
    memory_taken(pointer(a.start), size_bytes, a.device);
    *out = a;
    return true;
}

/* Takes the allocation that starts at `start` out of use; false if there is none. */
bool release(memory &all, uintptr_t start)
{
    const allocation *found = find(all, start);
    if (found == nullptr || found->start != start)
        return false;
    allocation a = *found;
    {
        device_access access;
        check_guard(a, "something");
    }
    memory_freed(pointer(a.start), a.size_bytes);
    all.used[a.device] -= a.size_bytes;
    all.live.erase(a.pages);
    void *same = mmap(pointer(a.pages), a.pages_bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (same == MAP_FAILED)
        fatal("cudaFree cannot take memory back");
    all.freed.push_back(a);
    if (all.freed.size() > KEPT_AFTER_FREE) {
        discard(all.freed.front());
        all.freed.pop_front();
    }
    return true;
}

} // namespace

int device_of(const void *piece)
{
    memory &all = all_memory();
    std::lock_guard<std::mutex> hold(all.lock);
    const allocation *a = find(all, reinterpret_cast<uintptr_t>(piece));
    return a == nullptr ? -1 : a->device;
}

size_t device_memory_bytes()
{
    static const size_t bytes =
        static_cast<size_t>(environment_number("MNIST_DDP_EMULATED_MEMORY_MIB", 2048, 0, 1 << 20))
        << 20;
    return bytes;
}

bool is_device_memory(const void *piece, size_t size_bytes)
{
    memory &all = all_memory();
    std::lock_guard<std::mutex> hold(all.lock);
    uintptr_t address = reinterpret_cast<uintptr_t>(piece);
    const allocation *a = find(all, address);
    return a != nullptr && address >= a->start && address - a->start <= a->size_bytes &&
           size_bytes <= a->size_bytes - (address - a->start);
}

void check_device(const void *piece, size_t size_bytes, const char *what)
{
    if (!is_device_memory(piece, size_bytes))
        fatal("%s needs device memory: %p (%zu bytes) is not", what, piece, size_bytes);
    int owner = device_of(piece);
    if (working_device() >= 0 && owner != working_device())
        fatal("%s needs memory of device %d: %p is of device %d, and peer access is not enabled",
              what, working_device(), piece, owner);
}

__attribute__((weak)) void memory_taken(const void *, size_t, int)
{
}

__attribute__((weak)) void memory_freed(const void *, size_t)
{
}

__attribute__((weak)) void memory_written(const void *, size_t)
{
}

void check_guard_zones(const char *name)
{
    memory &all = all_memory();
    std::lock_guard<std::mutex> hold(all.lock);
    for (const auto &[pages, a] : all.live)
        check_guard(a, name);
}

bool describe_device_address(uintptr_t address, char *text, size_t size_bytes)
{
    memory &all = all_memory();
    std::unique_lock<std::mutex> hold(all.lock, std::try_to_lock);
    if (!hold.owns_lock())
        return false;
    const allocation *a = find(all, address);
    if (a != nullptr) {
        std::snprintf(text, size_bytes,
                      "memory of device %d: %ld bytes from the start of %zu bytes", a->device,
                      static_cast<long>(address - a->start), a->size_bytes);
        return true;
    }
    for (const allocation &f : all.freed)
        if (address - f.pages < f.pages_bytes) {
            std::snprintf(text, size_bytes, "freed device memory: %ld bytes from the start of %zu",
                          static_cast<long>(address - f.start), f.size_bytes);
            return true;
        }
    return false;
}

} // namespace emulated

using namespace emulated;

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    memory &all = all_memory();
    std::lock_guard<std::mutex> hold(all.lock);
    *total_bytes = device_memory_bytes();
    *free_bytes = *total_bytes - all.used[current_device()];
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t size_bytes)
{
    if (cudaError_t error = begin_unsafe_call(__func__))
        return error;
    *out = nullptr;
    if (size_bytes == 0)
        return cudaSuccess;
    memory &all = all_memory();
    std::lock_guard<std::mutex> hold(all.lock);
    allocation a;
    if (size_bytes > device_memory_bytes() - all.used[current_device()] ||
        !allocate(all, size_bytes, &a))
        return record(cudaErrorMemoryAllocation);
    account("device allocation", 1);
    *out = pointer(a.start);
    return cudaSuccess;
}

/* Waits for all work first, as CUDA's may. */
cudaError_t cudaFree(void *piece)
{
    cudaError_t error = begin_unsafe_call(__func__);
    if (error == cudaErrorStreamCaptureUnsupported || piece == nullptr)
        return error;
    wait_until_device_is_idle(device_of(piece), __func__);
    memory &all = all_memory();
    std::lock_guard<std::mutex> hold(all.lock);
    if (!release(all, reinterpret_cast<uintptr_t>(piece)))
        return record(cudaErrorInvalidValue);
    account("device allocation", -1);
    return error;
}
