#include "kernels/cuda/cuda_call.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HINT_BYTES = 256 };

/* What to do, if the library's own text does not say it. */
static const char *fixed_hint(cudaError_t code)
{
    switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
        return "a kernel went wrong, perhaps one before this call: compute-sanitizer names it";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
        return "the module was not built for this GPU: build it here, or with the GPU's "
               "architecture in CMAKE_CUDA_ARCHITECTURES";
    case cudaErrorDevicesUnavailable:
        return "another process holds the GPU: nvidia-smi lists them";
    case cudaErrorSystemNotReady:
        return "the GPU's services are not running (nvidia-fabricmanager on NVSwitch machines)";
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
        return "the GPU itself fails: see the kernel log (dmesg)";
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
        return "a step could not be recorded in a graph: --no-cuda-graph trains without graphs";
    default:
        return NULL;
    }
}

static void hint_of(cudaError_t code, char *out)
{
    out[0] = '\0';
    if (code == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, total_bytes = 0;
        if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess)
            snprintf(out, HINT_BYTES, "; %zu of its %zu MiB are free: lower --batch-size",
                     free_bytes >> 20, total_bytes >> 20);
        else
            snprintf(out, HINT_BYTES, "; lower --batch-size");
    } else if (code == cudaErrorInsufficientDriver) {
        int driver = 0, runtime = 0;
        (void)cudaDriverGetVersion(&driver);
        (void)cudaRuntimeGetVersion(&runtime);
        if (driver == 0)
            snprintf(out, HINT_BYTES, "; there is no NVIDIA driver here");
        else
            snprintf(out, HINT_BYTES, "; the driver serves CUDA %d.%d, this program needs %d.%d",
                     driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    } else if (code == cudaErrorNoDevice) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        if (visible != NULL)
            snprintf(out, HINT_BYTES, "; CUDA_VISIBLE_DEVICES is '%.64s'", visible);
    } else if (fixed_hint(code) != NULL) {
        snprintf(out, HINT_BYTES, "; %s", fixed_hint(code));
    }
}

/* "name" or "name on GPU 0" of the call whose text is "name(arguments)". */
static void name_call(const char *call, char *out, size_t out_bytes)
{
    static const char launch[] = "cudaGetLastError"; /* the call after a launch */
    int gpu = -1, length = (int)strcspn(call, "(");
    const char *what = strncmp(call, launch, sizeof launch - 1) == 0 ? "kernel launch, " : "";
    if (cudaGetDevice(&gpu) == cudaSuccess && gpu >= 0)
        snprintf(out, out_bytes, "%s%.*s on GPU %d", what, length, call, gpu);
    else
        snprintf(out, out_bytes, "%s%.*s", what, length, call);
}

status cuda_call_status(cudaError_t code, const char *call, const char *file, int line)
{
    if (code == cudaSuccess)
        return STATUS_OK;
    char name[96], hint[HINT_BYTES];
    name_call(call, name, sizeof name);
    hint_of(code, hint);
    (void)cudaGetLastError(); /* clears the runtime's copy, so that the next launch does not report
                                 it */
    return status_fail(code == cudaErrorMemoryAllocation ? STATUS_NO_MEMORY : STATUS_DEVICE, file,
                       line, "%s: %s (%d): %s%s", name, cudaGetErrorName(code), (int)code,
                       cudaGetErrorString(code), hint);
}

const char *cuda_call_cublas_name(cublasStatus_t code)
{
    switch (code) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
        return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
        return "cuBLAS error";
    }
}

status cuda_call_cublaslt(cublasStatus_t code, const char *call, const char *file, int line)
{
    if (code == CUBLAS_STATUS_SUCCESS)
        return STATUS_OK;
    char name[96];
    name_call(call, name, sizeof name);
    return status_fail(code == CUBLAS_STATUS_ALLOC_FAILED ? STATUS_NO_MEMORY : STATUS_DEVICE, file,
                       line, "%s: %s (%d)", name, cuda_call_cublas_name(code), (int)code);
}

status cuda_call_cudnn(cudnnStatus_t code, const char *call, const char *file, int line)
{
    if (code == CUDNN_STATUS_SUCCESS)
        return STATUS_OK;
    char name[96], detail[256] = "";
    name_call(call, name, sizeof name);
    cudnnGetLastErrorString(detail, sizeof detail);
    detail[strcspn(detail, "\n")] = '\0';
    bool no_memory = code == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED ||
                     code == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    return status_fail(no_memory ? STATUS_NO_MEMORY : STATUS_DEVICE, file, line, "%s: %s (%d)%s%s",
                       name, cudnnGetErrorString(code), (int)code, detail[0] != '\0' ? ": " : "",
                       detail);
}
