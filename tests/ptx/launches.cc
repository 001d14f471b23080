/* What the host code that nvcc makes calls to register and launch kernels: they run as PTX. Plain
 * names and types are nvcc's (crt/host_runtime.h). */
#include "tests/emulator/runtime.h"
#include "tests/ptx/simulator.h"

#include <emulated_launch.h>

#include <map>

namespace
{

struct extent {
    unsigned x, y, z;
};

thread_local struct {
    extent blocks, threads;
    size_t shared_bytes;
    cudaStream_t stream;
} pushed;

/* By the address of its function on the host, which is what a launch names. */
std::map<const void *, const char *> &symbols()
{
    static auto *all = new std::map<const void *, const char *>;
    return *all;
}

} // namespace

#pragma GCC visibility push(hidden)
extern "C" {

void **__cudaRegisterFatBinary(void *)
{
    static void *handle;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **)
{
}

void __cudaUnregisterFatBinary(void **)
{
}

void __cudaRegisterFunction(void **, const char *host, char *, const char *symbol, int, void *,
                            void *, void *, void *, int *)
{
    symbols()[host] = symbol;
}

unsigned __cudaPushCallConfiguration(extent blocks, extent threads, size_t shared_bytes,
                                     cudaStream_t stream)
{
    pushed = {blocks, threads, shared_bytes, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(extent *blocks, extent *threads, size_t *shared_bytes,
                                       cudaStream_t *stream)
{
    *blocks = pushed.blocks;
    *threads = pushed.threads;
    *shared_bytes = pushed.shared_bytes;
    *stream = pushed.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(const ptx::kernel **out, const void *host)
{
    *out = &ptx::find_kernel(symbols().at(host));
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(const ptx::kernel *kernel, extent blocks, extent threads,
                               void **arguments, size_t shared_bytes, cudaStream_t stream)
{
    if (blocks.y * blocks.z * threads.y * threads.z != 1 || shared_bytes != 0)
        emulated::fatal("%s: more than one dimension, or shared memory of the launch's",
                        kernel->title);
    std::vector<char> parameters;
    for (const ptx::range &r : kernel->parameters) {
        parameters.resize(r.at + r.size_bytes);
        std::memcpy(&parameters[r.at], *arguments++, r.size_bytes);
    }
    emulated::launch_kernel(stream, blocks.x, threads.x, kernel->title,
                            [=] { ptx::run_thread(*kernel, parameters.data()); });
    return cudaPeekAtLastError();
}
}
#pragma GCC visibility pop
