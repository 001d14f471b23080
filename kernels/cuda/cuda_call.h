/* Error codes of NVIDIA's libraries as a status: the call, its error by name and text, and the
 * GPU. */
#ifndef MNIST_DDP_KERNELS_CUDA_CUDA_CALL_H
#define MNIST_DDP_KERNELS_CUDA_CUDA_CALL_H

#include "base/status.h"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* TRY(CUDA_CALL(cudaMemcpyAsync(dst, src, size_bytes, kind, stream))); a kernel launch is followed
 * by TRY(CUDA_CALL(cudaGetLastError())). Out of memory is STATUS_NO_MEMORY, else STATUS_DEVICE;
 * with a hint if there is one. */
#define CUDA_CALL(call) cuda_call_status((call), #call, __FILE__, __LINE__)
#define CUBLASLT_CALL(call) cuda_call_cublaslt((call), #call, __FILE__, __LINE__)
#define CUDNN_CALL(call) cuda_call_cudnn((call), #call, __FILE__, __LINE__)

/* "CUBLAS_STATUS_NOT_SUPPORTED". */
const char *cuda_call_cublas_name(cublasStatus_t code);

status cuda_call_status(cudaError_t code, const char *call, const char *file, int line);
status cuda_call_cublaslt(cublasStatus_t code, const char *call, const char *file, int line);
status cuda_call_cudnn(cudnnStatus_t code, const char *call, const char *file, int line);

#ifdef __cplusplus
}
#endif
#endif
