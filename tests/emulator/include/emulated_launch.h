/* Emulated device: how kernels start and declare shared memory (kernels/cuda/launch.cuh). */
#ifndef EMULATED_LAUNCH_H
#define EMULATED_LAUNCH_H

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <tuple>
#include <utility>

namespace emulated
{

/* As <<<blocks, threads, 0, stream>>>: whatever is wrong shows in cudaGetLastError(). `thread` runs
 * one thread of the kernel. */
void launch_kernel(cudaStream_t stream, long long blocks, long long threads, const char *name,
                   std::function<void()> thread);

/* Ends the process if a kernel is handed a pointer to what is neither its device's memory nor
 * pinned; in a struct, if a word of it is the address of another device's memory. */
void check_kernel_pointer(cudaStream_t stream, const char *kernel, const volatile void *pointer);
void check_kernel_struct(cudaStream_t stream, const char *kernel, const void *value,
                         size_t size_bytes);

/* A float and the padding after it may look like an address. A compiler that cannot clear padding
 * leaves structs unchecked. */
template <typename T>
void check_kernel_argument(cudaStream_t stream, const char *kernel, const T &value)
{
    if constexpr (std::is_pointer<T>::value) {
        check_kernel_pointer(stream, kernel, value);
    } else if constexpr (sizeof value >= sizeof(void *) && std::is_class<T>::value) {
#if __has_builtin(__builtin_clear_padding)
        std::remove_const_t<T> copy = value;
        __builtin_clear_padding(&copy);
        check_kernel_struct(stream, kernel, &copy, sizeof copy);
#endif
    }
}

/* Arguments are converted to the kernel's parameters and copied now, not when it runs. */
template <typename... Parameters, typename... Arguments>
void launch(cudaStream_t stream, long long blocks, long long threads, const char *name,
            void (*kernel)(Parameters...), Arguments &&...arguments)
{
    static_assert(sizeof...(Parameters) == sizeof...(Arguments), "arguments of a kernel");
    std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
    std::apply([=](const auto &...value) { (check_kernel_argument(stream, name, value), ...); },
               values);
    launch_kernel(stream, blocks, threads, name, [kernel, values] { std::apply(kernel, values); });
}

/* The block's piece of shared memory that belongs to one declaration: the same for all its threads.
 */
void *shared_memory(const char *declaration, size_t size_bytes, size_t alignment);

} // namespace emulated

#define LAUNCH(stream, blocks, threads, kernel, ...) \
    emulated::launch((stream), (blocks), (threads), #kernel, kernel, __VA_ARGS__)

#define SHARED(type, name, count) \
    static char name##_declaration; \
    type(&name)[count] = *static_cast<type(*)[count]>( \
        emulated::shared_memory(&name##_declaration, sizeof(type) * (count), alignof(type)))

#endif
