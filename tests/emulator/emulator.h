/* What the stand-ins for CUDA's runtime and NVIDIA's libraries share: the emulated device.
 *
 * One device thread per process runs all work; host threads only enqueue it. Functions here may be
 * called from any thread unless they say otherwise. Streams passed in are the caller's handles.
 */
#ifndef MNIST_DDP_TESTS_EMULATOR_EMULATOR_H
#define MNIST_DDP_TESTS_EMULATOR_EMULATOR_H

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace emulated
{

/* Prints "emulated device: <message> (seed ...)" and ends the process by abort(): for what no
 * program should do, and for what is not emulated. */
[[noreturn]] void fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The first thing every entry point does:
 *
 *     if (int code = entry_point(__func__))
 *         return static_cast<cublasStatus_t>(code);
 *
 * Counts the call for MNIST_DDP_EMULATED_TRACE; returns 0, or the code that MNIST_DDP_EMULATED_FAIL
 * ("name:nth:code,...") wants of this call, which then must do nothing. An entry point that ends
 * something (a release, cudaStreamEndCapture) ends it all the same and returns the code, as CUDA
 * does when it reports an earlier error there. Entry points that return no status ignore the
 * result. */
int entry_point(const char *name);

/* Counts what must be released before the process ends: account("cudnn handle", +1) on creation, -1
 * on release. `kind` is a string literal. */
void account(const char *kind, int change);

/* What is enqueued runs later, on the device thread: with access to device memory, in its stream's
 * order, and not while other work runs. During a capture it becomes a node of the graph and runs
 * once per replay: it must not use up what it holds. `name` is a string literal, for messages.
 *
 * cudaSuccess; cudaErrorInvalidResourceHandle if `stream` does not live;
 * cudaErrorStreamCaptureInvalidated if its capture is broken; the sticky error if there is one. */
cudaError_t enqueue(cudaStream_t stream, const char *name, std::function<void()> run);

/* pending: nothing could be done. advanced: something was, but not all. */
enum class progress { done, pending, advanced };

/* One execution of an operation that waits for others (a collective): called again and again by the
 * device thread until it says done; meanwhile other streams go on. Must not block. */
using step_fn = std::function<progress()>;

/* As enqueue(). begin() is called once per execution, in the stream's order, and returns that
 * execution's step. */
cudaError_t enqueue_steps(cudaStream_t stream, const char *name, std::function<step_fn()> begin);

/* Every later call of the runtime fails with `code`, and what is enqueued is dropped: as after an
 * illegal address. */
void set_sticky_error(cudaError_t code);

/* Whether [memory, memory + size_bytes) lies in one live allocation of cudaMalloc; check_device
 * ends the process if not: "<what> needs device memory". */
bool is_device_memory(const void *memory, size_t size_bytes);
void check_device(const void *memory, size_t size_bytes, const char *what);

/* Device memory has been taken by cudaMalloc, given back, or written by other work than a kernel's.
 * These do nothing; tests/ptx replaces them, to know what a kernel may read. */
void memory_taken(const void *memory, size_t size_bytes, int device);
void memory_freed(const void *memory, size_t size_bytes);
void memory_written(const void *memory, size_t size_bytes);

/* Whether it lies in one live piece of pinned host memory. */
bool is_pinned_memory(const void *memory, size_t size_bytes);

/* Host threads cannot touch device memory; within the life of one of these, this one can. The
 * device thread always can. */
class device_access
{
  public:
    device_access();
    ~device_access();
    device_access(const device_access &) = delete;
    device_access &operator=(const device_access &) = delete;

  private:
    unsigned before;
};

/* What launches a kernel calls this before it enqueues it: the first time on a device, the kernel
 * is loaded, also while a graph is recorded. By MNIST_DDP_EMULATED_LAZY that waits until the device
 * runs nothing (1, the default), as CUDA's loading may do; until no device of the process runs
 * anything (2), as if one lock guarded all contexts; or not at all (0). */
void load_kernel(cudaStream_t stream, const std::string &name);

/* The device that cudaSetDevice chose for the calling thread, and a stream's, as CUDA counts them
 * (CUDA_VISIBLE_DEVICES applied). A stream that does not live has none: -1. */
int current_device();
int stream_device(cudaStream_t stream);

/* The same device's number before CUDA_VISIBLE_DEVICES: alike in all processes. */
int physical_device(int device);

/* cudaSuccess; cudaErrorInsufficientDriver or cudaErrorNoDevice as the environment wants it; or the
 * sticky error. */
cudaError_t device_status();

/* MNIST_DDP_EMULATED_SEED, or the default. */
uint64_t seed();

} // namespace emulated

#endif
