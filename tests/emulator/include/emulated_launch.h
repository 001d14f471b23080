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

/* Ends the process if a kernel is handed a pointer to what is neither device memory nor pinned. */
void check_kernel_pointer(const char *kernel, const volatile void *pointer);

template <typename T> void check_kernel_argument(const char *kernel, const T &value)
{
    if constexpr (std::is_pointer<T>::value)
        check_kernel_pointer(kernel, value);
}

/* Arguments are converted to the kernel's parameters and copied now, not when it runs. */
template <typename... Parameters, typename... Arguments>
void launch(cudaStream_t stream, long long blocks, long long threads, const char *name,
            void (*kernel)(Parameters...), Arguments &&...arguments)
{
    static_assert(sizeof...(Parameters) == sizeof...(Arguments), "arguments of a kernel");
    std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
    std::apply([name](const auto &...value) { (check_kernel_argument(name, value), ...); }, values);
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
