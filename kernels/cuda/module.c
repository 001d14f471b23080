/* The one symbol of the cuda module. */
#include "base/module.h"
#include "kernels/cuda/cuda_ops.h"

extern const struct process_group_ops nccl_ops; /* dist/backends/nccl */

#ifdef CUDA_EMULATED
#define EMULATION "emulated device (tests/emulator): no GPU, not for measurements"
#else
#define EMULATION NULL
#endif

extern const module mnist_ddp_module;

__attribute__((visibility("default")))
const module mnist_ddp_module = {MODULE_ABI_VERSION, EMULATION, &cuda_kind, &nccl_ops, NULL, NULL};
