/* Devices, injected failures, leaks and traces. */
#include "checks.h"

#include "emulator.h"
#include "kernels/cuda/launch.cuh"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <unistd.h>

namespace
{

__global__ void set(float *out, float value)
{
    *out = value;
}

void devices_are_masked()
{
    int count = -1, device = -1, version = -1;
    cudaDeviceProp first, second;
    OK(cudaGetDeviceCount(&count));
    EXPECT(count == 2);
    OK(cudaGetDeviceProperties(&first, 0));
    OK(cudaGetDeviceProperties(&second, 1));
    EXPECT(std::strcmp(first.name, "EMULATED device") == 0);
    EXPECT(first.major == 9 && first.minor == 0 && first.multiProcessorCount == 4);
    EXPECT(std::memcmp(&first.uuid, &second.uuid, sizeof first.uuid) != 0);
    EXPECT(emulated::physical_device(0) == 3 && emulated::physical_device(1) == 1);
    EXPECT(cudaGetDeviceProperties(&first, 2) == cudaErrorInvalidDevice);
    EXPECT(cudaSetDevice(2) == cudaErrorInvalidDevice);
    OK(cudaSetDevice(1));
    OK(cudaGetDevice(&device));
    EXPECT(device == 1);
    OK(cudaDriverGetVersion(&version));
    EXPECT(version == 13000);
    bench b;
    EXPECT(emulated::stream_device(b.stream) == 1);
    LAUNCH(b.stream, 1, 1, set, b.memory, 1.0f);
    EXPECT(b.read()[0] == 1.0f);
    b.close();
}

void no_device()
{
    int count = -7;
    void *memory;
    EXPECT(cudaGetDeviceCount(&count) == cudaErrorNoDevice && count == -7);
    EXPECT(cudaMalloc(&memory, 4) == cudaErrorNoDevice);
}

void no_driver()
{
    int count = -7, version = -7;
    EXPECT(cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver && count == -7);
    OK(cudaDriverGetVersion(&version));
    EXPECT(version == 0);
}

void errors_have_names()
{
    EXPECT(std::strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress") == 0);
    EXPECT(std::strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
    EXPECT(std::strcmp(cudaGetErrorName(static_cast<cudaError_t>(998)),
                       "unrecognized error code") == 0);
}

void calls_fail_on_demand()
{
    bench b;
    void *memory;
    OK(cudaMalloc(&memory, 4));
    OK(cudaFree(memory));
    EXPECT(cudaMalloc(&memory, 4) == cudaErrorMemoryAllocation);
    EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
    OK(cudaMalloc(&memory, 4));
    LAUNCH(b.stream, 1, 1, set, b.memory, 1.0f);
    OK(cudaGetLastError());
    LAUNCH(b.stream, 1, 1, set, b.memory, 2.0f);
    EXPECT(cudaGetLastError() == cudaErrorLaunchOutOfResources);
    EXPECT(b.read()[0] == 1.0f);
    EXPECT(cudaFree(memory) == cudaErrorUnknown); /* released all the same */
    b.close();
}

void illegal_address_sticks()
{
    bench b;
    LAUNCH(b.stream, 1, 1, set, b.memory, 1.0f);
    EXPECT(cudaStreamQuery(b.stream) == cudaErrorIllegalAddress);
    EXPECT(cudaStreamQuery(b.stream) == cudaErrorIllegalAddress);
    EXPECT(cudaGetLastError() == cudaErrorIllegalAddress);
    EXPECT(cudaGetLastError() == cudaErrorIllegalAddress);
    LAUNCH(b.stream, 1, 1, set, b.memory, 1.0f);
    EXPECT(cudaEventQuery(b.event) == cudaErrorIllegalAddress);
    EXPECT(cudaFree(b.memory) == cudaErrorIllegalAddress);
    EXPECT(cudaEventDestroy(b.event) == cudaErrorIllegalAddress);
    EXPECT(cudaStreamDestroy(b.side) == cudaErrorIllegalAddress);
    EXPECT(cudaStreamDestroy(b.stream) == cudaErrorIllegalAddress);
}

/* By device code, while it runs. */
void asynchronous_error_shows_later()
{
    bench b;
    OK(emulated::enqueue(b.stream, "fault",
                         [] { emulated::set_sticky_error(cudaErrorLaunchFailure); }));
    cudaError_t error;
    while ((error = cudaStreamQuery(b.stream)) == cudaErrorNotReady)
        usleep(20);
    EXPECT(error == cudaErrorLaunchFailure);
    cudaStreamDestroy(b.stream);
    cudaStreamDestroy(b.side);
    cudaEventDestroy(b.event);
    cudaFree(b.memory);
}

void leave_everything()
{
    bench b;
    void *pinned;
    OK(cudaHostAlloc(&pinned, 4, 0));
    emulated::account("cudnn handle", 1);
}

void leave_nothing()
{
    bench b;
    b.close();
}

void leave_everything_and_fail()
{
    leave_everything();
    std::exit(7);
}

void leave_work_behind()
{
    bench b;
    OK(emulated::enqueue_steps(b.stream, "never", []() -> emulated::step_fn {
        return [] { return emulated::progress::pending; };
    }));
    OK(cudaStreamDestroy(b.stream));
    OK(cudaStreamDestroy(b.side));
    OK(cudaEventDestroy(b.event));
}

void malformed_injection()
{
    int count;
    cudaGetDeviceCount(&count);
}

/* What a process appends at its end to the file that `variable` names: so it is a child of this one
 * that runs `body`. */
std::string told_by_a_child(const char *variable, void (*body)())
{
    char path[] = "emulated_trace_XXXXXX";
    int file = mkstemp(path);
    EXPECT(file >= 0);
    setenv(variable, path, 1);
    pid_t child = fork();
    if (child == 0) {
        body();
        std::exit(EXIT_SUCCESS);
    }
    EXPECT(waitpid(child, nullptr, 0) == child);
    std::ifstream told(path);
    std::stringstream text;
    text << told.rdbuf();
    unlink(path);
    close(file);
    return text.str();
}

void calls_are_counted()
{
    EXPECT(told_by_a_child("MNIST_DDP_EMULATED_TRACE", leave_nothing) ==
           "cudaEventCreateWithFlags 1\ncudaEventDestroy 1\ncudaFree 1\n"
           "cudaMalloc 1\ncudaStreamCreateWithFlags 2\ncudaStreamDestroy 2\n");
}

/* A kernel, alone and then as the node of a graph that is launched three times; a blocking copy. */
void some_work()
{
    bench b;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    LAUNCH(b.stream, 1, 1, set, b.memory, 1.0f);
    OK(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal));
    LAUNCH(b.stream, 1, 1, set, b.memory, 2.0f);
    OK(cudaStreamEndCapture(b.stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++)
        OK(cudaGraphLaunch(exec, b.stream));
    OK(cudaEventRecord(b.event, b.stream));
    EXPECT(b.read()[0] == 2.0f);
    OK(cudaEventQuery(b.event));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    b.close();
}

void work_is_counted()
{
    EXPECT(told_by_a_child("MNIST_DDP_EMULATED_WORK", some_work) ==
           "graph 3 set\n"
           "stream 1 cudaEventRecord\nstream 3 cudaGraphLaunch\n"
           "stream 1 cudaMemcpyAsync\nstream 1 set\n"
           "wait 1 cudaEventQuery\nwait 1 cudaMemcpyAsync\nwait 1 cudaStreamQuery\n");
}

} // namespace

static const std::vector<check> CHECKS = {
    {"device: masked by CUDA_VISIBLE_DEVICES", devices_are_masked, ending::succeeds, nullptr,
     "MNIST_DDP_EMULATED_DEVICES=4 CUDA_VISIBLE_DEVICES=3,1,7,0"},
    {"device: none", no_device, ending::succeeds, nullptr, "MNIST_DDP_EMULATED_DEVICES=0"},
    {"device: none visible", no_device, ending::succeeds, nullptr, "CUDA_VISIBLE_DEVICES=-1"},
    {"device: no driver", no_driver, ending::succeeds, nullptr, "MNIST_DDP_EMULATED_DRIVER=none"},
    {"error: names and texts", errors_have_names},
    {"error: calls fail on demand", calls_fail_on_demand, ending::succeeds, nullptr,
     "MNIST_DDP_EMULATED_STRICT=1 MNIST_DDP_EMULATED_FAIL="
     "cudaMalloc:3:2,cudaLaunchKernel:2:701,cudaFree:2:999"},
    {"error: an illegal address sticks", illegal_address_sticks, ending::succeeds, nullptr,
     "MNIST_DDP_EMULATED_STRICT=1 MNIST_DDP_EMULATED_FAIL=cudaStreamQuery:1:700"},
    {"error: an asynchronous one shows later", asynchronous_error_shows_later},
    {"error: a malformed demand dies", malformed_injection, ending::dies, "not name:nth:code",
     "MNIST_DDP_EMULATED_FAIL=cudaMalloc:1"},
    {"leak: told", leave_everything, ending::succeeds, "emulated device: leaked 1 x cudnn handle"},
    {"leak: strict", leave_everything, ending::exits, "emulated device: leaked 2 x stream",
     "MNIST_DDP_EMULATED_STRICT=1", 1, 99},
    {"leak: a failure stays what it is", leave_everything_and_fail, ending::exits,
     "emulated device: leaked 1 x pinned allocation", "MNIST_DDP_EMULATED_STRICT=1", 1, 7},
    {"leak: none", leave_nothing, ending::succeeds, nullptr, "MNIST_DDP_EMULATED_STRICT=1"},
    {"leak: unfinished work does not hang the end", leave_work_behind, ending::exits,
     "emulated device: leaked 1 x device allocation", "MNIST_DDP_EMULATED_STRICT=1", 1, 99},
    {"trace: calls are counted", calls_are_counted},
    {"trace: work is counted", work_is_counted},
};

int main(int argc, char **argv)
{
    return run_checks(CHECKS, argc, argv);
}
