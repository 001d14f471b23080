/* Memory: what the host may do with it, what it may not, and what kernels may not. */
#include "checks.h"

#include "kernels/cuda/launch.cuh"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <sys/mman.h>

namespace
{

__global__ void set_at(float *out, long index, float value)
{
    out[index] = value;
}

__global__ void add_from(float *out, const float *from, long index)
{
    *out += from[index];
}

void device_memory_begins_as_nan()
{
    bench b;
    for (float value : b.read())
        EXPECT(std::isnan(value));
    EXPECT(reinterpret_cast<uintptr_t>(b.memory) % 256 == 0);
    b.close();
}

void allocations_are_counted()
{
    size_t free_bytes, total_bytes;
    void *first, *second;
    OK(cudaMemGetInfo(&free_bytes, &total_bytes));
    EXPECT(total_bytes == 8 << 20 && free_bytes == total_bytes);
    OK(cudaMalloc(&first, 5 << 20));
    EXPECT(cudaMalloc(&second, 4 << 20) == cudaErrorMemoryAllocation && second == nullptr);
    EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
    OK(cudaMalloc(&second, 3 << 20));
    OK(cudaMemGetInfo(&free_bytes, &total_bytes));
    EXPECT(free_bytes == 0);
    OK(cudaFree(first));
    OK(cudaFree(second));
    OK(cudaFree(nullptr));
    EXPECT(cudaFree(first) == cudaErrorInvalidValue);
    EXPECT(cudaFree(&first) == cudaErrorInvalidValue);
    OK(cudaMemGetInfo(&free_bytes, &total_bytes));
    EXPECT(free_bytes == 8 << 20);
}

/* 1000 bytes: there is room behind them, up to the next 256. 1024: a guarded page follows. */
void write_behind(size_t size_bytes)
{
    bench b;
    void *memory;
    OK(cudaMalloc(&memory, size_bytes));
    LAUNCH(b.stream, 1, 1, set_at, static_cast<float *>(memory), static_cast<long>(size_bytes / 4),
           1.0f);
    b.read();
}

void write_behind_memory_dies()
{
    write_behind(1000);
}

void write_behind_full_page_dies()
{
    write_behind(1024);
}

void write_before_memory_dies()
{
    bench b;
    void *memory;
    OK(cudaMalloc(&memory, 1024));
    LAUNCH(b.stream, 1, 1, set_at, static_cast<float *>(memory), -1L, 1.0f);
    b.read();
}

void read_behind_full_page_dies()
{
    bench b;
    LAUNCH(b.stream, 1, 1, add_from, b.memory, b.memory, static_cast<long>(bench::COUNT));
    b.read();
}

void use_after_free_dies()
{
    bench b;
    void *memory;
    OK(cudaMalloc(&memory, 1024));
    OK(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal));
    LAUNCH(b.stream, 1, 1, set_at, static_cast<float *>(memory), 0L, 1.0f);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamEndCapture(b.stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaFree(memory));
    OK(cudaGraphLaunch(exec, b.stream));
    b.read();
}

bool has_protection_keys()
{
#ifdef PKEY_DISABLE_ACCESS
    int key = pkey_alloc(0, 0);
    return key >= 0 && pkey_free(key) == 0;
#else
    return false;
#endif
}

void host_read_dies()
{
    bench b;
    volatile float *memory = b.memory;
    if (!has_protection_keys())
        std::exit(SKIPPED);
    EXPECT(std::isnan(memory[3]));
}

void host_pointer_to_kernel_dies()
{
    bench b;
    float own = 0.0f;
    LAUNCH(b.stream, 1, 1, set_at, &own, 0L, 1.0f);
}

void copies_check_their_ends()
{
    bench b;
    float own[4] = {1, 2, 3, 4};
    auto size = sizeof own;
    EXPECT(cudaMemcpyAsync(own, own + 1, 4, cudaMemcpyHostToDevice, b.stream) ==
           cudaErrorInvalidValue);
    EXPECT(cudaMemcpyAsync(b.memory, b.memory + 8, size, cudaMemcpyDeviceToHost, b.stream) ==
           cudaErrorInvalidValue);
    EXPECT(cudaMemcpyAsync(b.memory + bench::COUNT - 3, own, size, cudaMemcpyHostToDevice,
                           b.stream) == cudaErrorInvalidValue);
    EXPECT(cudaMemcpyAsync(b.memory, b.memory + 1, size, cudaMemcpyDeviceToDevice, b.stream) ==
           cudaErrorInvalidValue);
    EXPECT(cudaMemsetAsync(own, 0, size, b.stream) == cudaErrorInvalidValue);
    cudaGetLastError();
    OK(cudaMemcpyAsync(b.memory, own, size, cudaMemcpyDefault, b.stream));
    OK(cudaMemcpyAsync(b.memory + 4, b.memory, size, cudaMemcpyDeviceToDevice, b.stream));
    OK(cudaMemsetAsync(b.memory + 8, 0, 4, b.stream));
    EXPECT(b.read()[7] == 4.0f && b.read()[8] == 0.0f);
    OK(cudaMemset(b.memory, 0, bench::COUNT * sizeof(float)));
    EXPECT(b.read()[0] == 0.0f && b.read()[4095] == 0.0f);
    b.close();
}

void pageable_source_is_read_at_once()
{
    bench b;
    float own = 1.0f;
    gate busy(b.stream);
    OK(cudaMemcpyAsync(b.memory, &own, sizeof own, cudaMemcpyHostToDevice, b.stream));
    own = 2.0f;
    busy.open();
    EXPECT(b.read()[0] == 1.0f);
    b.close();
}

/* The pinned buffer is written again before the copy is done. */
void early_reuse_of_pinned_memory_shows()
{
    bench b;
    void *pinned;
    OK(cudaHostAlloc(&pinned, sizeof(float), cudaHostAllocDefault));
    auto *value = static_cast<float *>(pinned);
    *value = 1.0f;
    gate busy(b.stream);
    OK(cudaMemcpyAsync(b.memory, value, sizeof *value, cudaMemcpyHostToDevice, b.stream));
    *value = 2.0f;
    busy.open();
    EXPECT(b.read()[0] == 2.0f);
    OK(cudaFreeHost(pinned));
    b.close();
}

__global__ void count_up(volatile unsigned *counter)
{
    *counter = *counter + 1;
    __threadfence_system();
}

void pinned_memory_is_mapped()
{
    bench b;
    void *pinned, *mapped;
    OK(cudaHostAlloc(&pinned, sizeof(unsigned), cudaHostAllocMapped | cudaHostAllocPortable));
    OK(cudaHostGetDevicePointer(&mapped, pinned, 0));
    auto *counter = static_cast<unsigned *>(pinned);
    EXPECT(*counter == 0xFFFFFFFFu);
    *counter = 5;
    LAUNCH(b.stream, 1, 1, count_up, static_cast<unsigned *>(mapped));
    b.wait(b.stream);
    EXPECT(*counter == 6);
    EXPECT(cudaHostUnregister(pinned) == cudaErrorHostMemoryNotRegistered);
    OK(cudaFreeHost(pinned));
    OK(cudaFreeHost(nullptr));
    EXPECT(cudaFreeHost(pinned) == cudaErrorInvalidValue);
    EXPECT(cudaHostGetDevicePointer(&mapped, pinned, 0) == cudaErrorInvalidValue);
    b.close();
}

void host_memory_is_registered()
{
    std::vector<float> own(1000, 3.0f);
    size_t size = own.size() * sizeof(float);
    bench b;
    void *mapped;
    OK(cudaHostRegister(own.data(), size, cudaHostRegisterMapped));
    EXPECT(cudaHostRegister(own.data() + 10, 8, 0) == cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaHostGetDevicePointer(&mapped, own.data() + 1, 0));
    EXPECT(mapped == own.data() + 1);
    gate busy(b.stream);
    OK(cudaMemcpyAsync(b.memory, own.data(), size, cudaMemcpyHostToDevice, b.stream));
    own[999] = 4.0f;
    busy.open();
    EXPECT(b.read()[999] == 4.0f);
    OK(cudaHostUnregister(own.data()));
    EXPECT(cudaHostUnregister(own.data()) == cudaErrorHostMemoryNotRegistered);
    b.close();
}

} // namespace

static const std::vector<check> CHECKS = {
    {"memory: begins as NaN, aligned to 256", device_memory_begins_as_nan},
    {"memory: is counted and runs out", allocations_are_counted, ending::succeeds, nullptr,
     "MNIST_DDP_EMULATED_MEMORY_MIB=8"},
    {"memory: a write behind it dies", write_behind_memory_dies, ending::dies},
    {"memory: a write behind a full page dies", write_behind_full_page_dies, ending::dies,
     "device code touched device memory: 1024 bytes from the start of 1024 bytes, in set_at"},
    {"memory: a write before it dies", write_before_memory_dies, ending::dies},
    {"memory: a read behind a full page dies", read_behind_full_page_dies, ending::dies,
     "device code touched device memory"},
    {"memory: a use after cudaFree dies", use_after_free_dies, ending::dies,
     "device code touched freed device memory"},
    {"memory: a read by the host dies", host_read_dies, ending::dies,
     "host code touched device memory"},
    {"memory: a kernel given host memory dies", host_pointer_to_kernel_dies, ending::dies,
     "neither device memory nor pinned"},
    {"memory: copies check their ends", copies_check_their_ends},
    {"memory: pageable sources are read at once", pageable_source_is_read_at_once},
    {"memory: pinned memory used again too early shows", early_reuse_of_pinned_memory_shows},
    {"memory: pinned memory is mapped", pinned_memory_is_mapped},
    {"memory: host memory is registered", host_memory_is_registered},
};

int main(int argc, char **argv)
{
    return run_checks(CHECKS, argc, argv);
}
