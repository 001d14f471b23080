/* The emulated devices: how many there are, and what they say of themselves. */
#include "runtime.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace emulated
{

namespace
{

enum { MOST_DEVICES = 8, VERSION = 13000 };

thread_local int chosen = 0;

bool has_driver()
{
    const char *driver = std::getenv("MNIST_DDP_EMULATED_DRIVER");
    if (driver == nullptr || *driver == '\0')
        return true;
    if (std::strcmp(driver, "none") != 0)
        fatal("MNIST_DDP_EMULATED_DRIVER=%s: only 'none' is known", driver);
    return false;
}

/* As CUDA reads CUDA_VISIBLE_DEVICES: up to the first entry that names no device. */
std::vector<int> find_devices()
{
    int count =
        static_cast<int>(environment_number("MNIST_DDP_EMULATED_DEVICES", 1, 0, MOST_DEVICES));
    const char *text = std::getenv("CUDA_VISIBLE_DEVICES");
    std::vector<int> devices;
    if (text == nullptr) {
        for (int i = 0; i < count; i++)
            devices.push_back(i);
        return devices;
    }
    while (*text != '\0') {
        char *end;
        long index = std::strtol(text, &end, 10);
        if (end == text || (*end != ',' && *end != '\0') || index < 0 || index >= count)
            break;
        for (int earlier : devices)
            if (earlier == index)
                return {}; /* one named twice: none is visible */
        devices.push_back(static_cast<int>(index));
        text = *end == ',' ? end + 1 : end;
    }
    return devices;
}

const std::vector<int> &devices()
{
    static const std::vector<int> all = find_devices();
    return all;
}

} // namespace

size_t visible_devices()
{
    return devices().size();
}

int current_device()
{
    return chosen;
}

int physical_device(int device)
{
    return devices().at(static_cast<size_t>(device));
}

cudaError_t device_status()
{
    static const bool driver = has_driver();
    if (!driver)
        return cudaErrorInsufficientDriver;
    if (devices().empty())
        return cudaErrorNoDevice;
    return sticky_error();
}

} // namespace emulated

using namespace emulated;

cudaError_t cudaDriverGetVersion(int *version)
{
    if (int code = entry_point(__func__))
        return record(static_cast<cudaError_t>(code));
    *version = device_status() == cudaErrorInsufficientDriver ? 0 : VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    if (int code = entry_point(__func__))
        return record(static_cast<cudaError_t>(code));
    *version = VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    *count = static_cast<int>(visible_devices());
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    if (device < 0 || static_cast<size_t>(device) >= visible_devices())
        return record(cudaErrorInvalidDevice);
    chosen = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    *device = chosen;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    if (cudaError_t error = begin_call(__func__))
        return error;
    if (device < 0 || static_cast<size_t>(device) >= visible_devices())
        return record(cudaErrorInvalidDevice);
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "EMULATED device");
    for (int i = 0; i < 16; i++)
        properties->uuid.bytes[i] = static_cast<char>(0xE0 + i);
    properties->uuid.bytes[15] = static_cast<char>(physical_device(device));
    properties->totalGlobalMem = device_memory_bytes();
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerMultiprocessor = 48 << 10;
    properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = properties->maxThreadsPerMultiProcessor = 1024;
    properties->maxThreadsDim[0] = 1024;
    properties->maxThreadsDim[1] = properties->maxThreadsDim[2] = 1;
    properties->maxGridSize[0] = 0x7FFFFFFF;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 1;
    properties->major = 9;
    properties->multiProcessorCount = 4;
    properties->canMapHostMemory = properties->unifiedAddressing = 1;
    properties->concurrentKernels = properties->asyncEngineCount = 1;
    properties->pciBusID = physical_device(device) + 1;
    properties->memoryBusWidth = 64;
    properties->l2CacheSize = 1 << 20;
    return cudaSuccess;
}
