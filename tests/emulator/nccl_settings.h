/* Emulated NCCL: what it reads from the environment, and its log. */
#ifndef MNIST_DDP_TESTS_EMULATOR_NCCL_SETTINGS_H
#define MNIST_DDP_TESTS_EMULATOR_NCCL_SETTINGS_H

#include "nccl_region.h"

namespace emulated
{

/* The first thing of a process that uses NCCL: puts what $NCCL_CONF_FILE sets into the environment,
 * where it is not set, and begins the log that NCCL_DEBUG asks for, by default on stdout. */
void nccl_read_settings();

/* Which kinds NVLS does, by NCCL_ALGO and NCCL_NVLS_ENABLE: the emulated node has it for more than
 * two ranks, and it is the fastest. ncclInvalidUsage where NCCL_ALGO is none. */
struct nccl_algorithms {
    bool nvls_all_reduce = false, nvls_reduce_scatter = false;
};
ncclResult_t nccl_choose_algorithms(int ranks, nccl_algorithms *out);

} // namespace emulated

#endif
