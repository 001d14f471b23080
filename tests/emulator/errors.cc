/* The emulated runtime's errors: their names, each thread's latest, and the one that sticks. */
#include "runtime.h"

#include <atomic>

namespace emulated
{

namespace
{

struct error_entry {
    cudaError_t code;
    const char *name;
    const char *text;
};

#define ERROR(name, text) \
    { \
        name, #name, text \
    }

const error_entry ERRORS[] = {
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInitializationError, "initialization error"),
    ERROR(cudaErrorCudartUnloading, "driver shutting down"),
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR(cudaErrorInvalidHostPointer, "invalid host pointer"),
    ERROR(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction"),
    ERROR(cudaErrorStubLibrary, "the stub driver was loaded"),
    ERROR(cudaErrorInsufficientDriver, "the driver is too old for this runtime, or missing"),
    ERROR(cudaErrorCallRequiresNewerDriver, "the call needs a newer driver"),
    ERROR(cudaErrorDevicesUnavailable, "all devices are busy or unavailable"),
    ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ERROR(cudaErrorNoDevice, "no device was found"),
    ERROR(cudaErrorInvalidDevice, "invalid device number"),
    ERROR(cudaErrorInvalidKernelImage, "the kernel image is invalid"),
    ERROR(cudaErrorDeviceUninitialized, "invalid device context"),
    ERROR(cudaErrorNoKernelImageForDevice, "no kernel image for this device"),
    ERROR(cudaErrorECCUncorrectable, "uncorrectable memory error"),
    ERROR(cudaErrorUnsupportedPtxVersion, "PTX from an unsupported toolchain"),
    ERROR(cudaErrorSharedObjectInitFailed, "a shared object failed to start"),
    ERROR(cudaErrorOperatingSystem, "an operating system call failed"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorIllegalState, "a resource is in the wrong state"),
    ERROR(cudaErrorSymbolNotFound, "named symbol not found"),
    ERROR(cudaErrorNotReady, "not ready"),
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR(cudaErrorLaunchTimeout, "the launch timed out and was stopped"),
    ERROR(cudaErrorContextIsDestroyed, "the context is destroyed"),
    ERROR(cudaErrorAssert, "an assertion failed on the device"),
    ERROR(cudaErrorHostMemoryAlreadyRegistered, "the host memory is already registered"),
    ERROR(cudaErrorHostMemoryNotRegistered, "the host memory is not registered"),
    ERROR(cudaErrorHardwareStackError, "hardware stack error"),
    ERROR(cudaErrorIllegalInstruction, "an illegal instruction was encountered"),
    ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    ERROR(cudaErrorInvalidAddressSpace, "operation not supported on this address space"),
    ERROR(cudaErrorInvalidPc, "invalid program counter"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorNotPermitted, "operation not permitted"),
    ERROR(cudaErrorNotSupported, "operation not supported"),
    ERROR(cudaErrorSystemNotReady, "the system is not ready"),
    ERROR(cudaErrorSystemDriverMismatch, "driver and user library differ in version"),
    ERROR(cudaErrorCompatNotSupportedOnDevice, "forward compatibility is not for this device"),
    ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted while a stream captures"),
    ERROR(cudaErrorStreamCaptureInvalidated, "an earlier error broke the capture"),
    ERROR(cudaErrorStreamCaptureMerge, "operation would merge two captures"),
    ERROR(cudaErrorStreamCaptureUnmatched, "the capture did not begin on this stream"),
    ERROR(cudaErrorStreamCaptureUnjoined, "work of another stream was not joined"),
    ERROR(cudaErrorStreamCaptureIsolation, "a captured stream would depend on uncaptured work"),
    ERROR(cudaErrorStreamCaptureImplicit, "implicit dependency on the default stream"),
    ERROR(cudaErrorCapturedEvent, "the event was last recorded in a capture"),
    ERROR(cudaErrorStreamCaptureWrongThread, "another thread began the capture"),
    ERROR(cudaErrorTimeout, "timeout"),
    ERROR(cudaErrorUnknown, "unknown error"),
};

thread_local cudaError_t last_error = cudaSuccess;
std::atomic<cudaError_t> sticky{cudaSuccess};

const error_entry *find(cudaError_t code)
{
    for (const error_entry &e : ERRORS)
        if (e.code == code)
            return &e;
    return nullptr;
}

/* These two may be injected, and see errors without being refused for them. */
cudaError_t report_last_error(const char *name, bool clear)
{
    if (int code = entry_point(name)) {
        if (is_sticky(static_cast<cudaError_t>(code)))
            set_sticky_error(static_cast<cudaError_t>(code));
        return static_cast<cudaError_t>(code);
    }
    cudaError_t code = sticky_error() != cudaSuccess ? sticky_error() : last_error;
    if (clear)
        last_error = cudaSuccess;
    return code;
}

} // namespace

cudaError_t record(cudaError_t code)
{
    if (code != cudaSuccess)
        last_error = code;
    return code;
}

cudaError_t sticky_error()
{
    return sticky.load();
}

bool is_sticky(cudaError_t code)
{
    switch (code) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
        return true;
    default:
        return false;
    }
}

void set_sticky_error(cudaError_t code)
{
    cudaError_t none = cudaSuccess;
    sticky.compare_exchange_strong(none, code); /* the first one stays */
}

cudaError_t begin_call(const char *name)
{
    if (int code = entry_point(name)) {
        if (is_sticky(static_cast<cudaError_t>(code)))
            set_sticky_error(static_cast<cudaError_t>(code));
        return record(static_cast<cudaError_t>(code));
    }
    return record(device_status());
}

cudaError_t begin_unsafe_call(const char *name)
{
    cudaError_t error = begin_call(name);
    if (error == cudaSuccess && break_captures_of_this_thread())
        error = cudaErrorStreamCaptureUnsupported;
    return record(error);
}

} // namespace emulated

using namespace emulated;

cudaError_t cudaGetLastError(void)
{
    return report_last_error(__func__, true);
}

cudaError_t cudaPeekAtLastError(void)
{
    return report_last_error(__func__, false);
}

const char *cudaGetErrorName(cudaError_t error)
{
    entry_point(__func__);
    const error_entry *e = find(error);
    return e == nullptr ? "unrecognized error code" : e->name;
}

const char *cudaGetErrorString(cudaError_t error)
{
    entry_point(__func__);
    const error_entry *e = find(error);
    return e == nullptr ? "unrecognized error code" : e->text;
}
