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

struct target {
    float value;
    int index;
    float *out;
};

__global__ void set_target(target t)
{
    t.out[t.index] = t.value;
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

/* 1000 bytes: the rest up to the next multiple of 256 is a guard. 1024: a guard page follows. */
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

/* The bench is of device 0; a stream of device 1. */
cudaStream_t stream_of_device_1()
{
    cudaStream_t stream;
    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

void peer_pointer_to_kernel_dies()
{
    bench b;
    LAUNCH(stream_of_device_1(), 1, 1, set_at, b.memory, 0L, 1.0f);
}

void peer_pointer_in_struct_dies()
{
    bench b;
    LAUNCH(stream_of_device_1(), 1, 1, set_target, (target{1.0f, 0, b.memory}));
}

void peer_copy_dies()
{
    bench b;
    float own = 1.0f;
    cudaStream_t stream = stream_of_device_1();
    OK(cudaMemcpyAsync(b.memory, &own, sizeof own, cudaMemcpyHostToDevice, stream));
    b.wait(stream);
}

void peer_fill_dies()
{
    bench b;
    OK(cudaSetDevice(1));
    cudaMemset(b.memory, 0, 4);
}

void each_device_has_its_own()
{
    bench b;
    float *memory, value = 0.0f;
    cudaStream_t stream = stream_of_device_1();
    OK(cudaMalloc(reinterpret_cast<void **>(&memory), 8));
    OK(cudaMemset(memory, 0, 8));
    LAUNCH(stream, 1, 1, set_target, (target{3.0f, 1, memory}));
    LAUNCH(b.stream, 1, 1, set_target, (target{4.0f, 1, b.memory}));
    OK(cudaMemcpyAsync(&value, memory + 1, sizeof value, cudaMemcpyDeviceToHost, stream));
    EXPECT(value == 3.0f);
    EXPECT(b.read()[1] == 4.0f);
    OK(cudaFree(memory));
    OK(cudaStreamDestroy(stream));
    b.close();
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

/* Bytes 0, 100 and 4096 of pages of their own. */
void registrations_are_of_pages()
{
    alignas(4096) static char own[3 * 4096];
    void *pinned;
    OK(cudaHostRegister(own, 4, cudaHostRegisterDefault));
    EXPECT(cudaHostRegister(own + 100, 4, cudaHostRegisterDefault) ==
           cudaErrorHostMemoryAlreadyRegistered);
    EXPECT(cudaHostRegister(own + 4000, 200, cudaHostRegisterDefault) ==
           cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaHostRegister(own + 4096, 4, cudaHostRegisterDefault));
    OK(cudaHostUnregister(own));
    OK(cudaHostRegister(own + 100, 4, cudaHostRegisterDefault));
    OK(cudaHostAlloc(&pinned, 4, cudaHostAllocDefault)); /* and is whole pages */
    EXPECT(cudaHostRegister(static_cast<char *>(pinned) + 8, 4, cudaHostRegisterDefault) ==
           cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaFreeHost(pinned));
    OK(cudaHostUnregister(own + 100));
    OK(cudaHostUnregister(own + 4096));
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
     "device code touched memory of device 0: 1024 bytes from the start of 1024 bytes, in set_at"},
    {"memory: a write before it dies", write_before_memory_dies, ending::dies},
    {"memory: a read behind a full page dies", read_behind_full_page_dies, ending::dies,
     "device code touched memory of device 0"},
    {"memory: a use after cudaFree dies", use_after_free_dies, ending::dies,
     "device code touched freed device memory"},
    {"memory: a read by the host dies", host_read_dies, ending::dies,
     "host code touched memory of device 0"},
    {"memory: a kernel given host memory dies", host_pointer_to_kernel_dies, ending::dies,
     "neither device memory nor pinned"},
    {"memory: a kernel given another device's memory dies", peer_pointer_to_kernel_dies,
     ending::dies, "set_at on device 1 is given", "MNIST_DDP_EMULATED_DEVICES=2"},
    {"memory: a kernel given it in a struct dies", peer_pointer_in_struct_dies, ending::dies,
     "set_target on device 1 is given", "MNIST_DDP_EMULATED_DEVICES=2"},
    {"memory: a copy to another device's memory dies", peer_copy_dies, ending::dies,
     "cudaMemcpyAsync needs memory of device 1", "MNIST_DDP_EMULATED_DEVICES=2"},
    {"memory: a fill of another device's memory dies", peer_fill_dies, ending::dies,
     "cudaMemset needs memory of device 1", "MNIST_DDP_EMULATED_DEVICES=2"},
    {"memory: of each device is its own work's", each_device_has_its_own, ending::succeeds, nullptr,
     "MNIST_DDP_EMULATED_DEVICES=2"},
    {"memory: copies check their ends", copies_check_their_ends},
    {"memory: pageable sources are read at once", pageable_source_is_read_at_once},
    {"memory: pinned memory used again too early shows", early_reuse_of_pinned_memory_shows},
    {"memory: pinned memory is mapped", pinned_memory_is_mapped},
    {"memory: host memory is registered", host_memory_is_registered},
    {"memory: host memory is registered by pages", registrations_are_of_pages},
};

int main(int argc, char **argv)
{
    return run_checks(CHECKS, argc, argv);
}
