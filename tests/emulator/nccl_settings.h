/* Emulated NCCL: what it reads from the environment, and its log. */
#ifndef MNIST_DDP_TESTS_EMULATOR_NCCL_SETTINGS_H
#define MNIST_DDP_TESTS_EMULATOR_NCCL_SETTINGS_H

#include "nccl_region.h"

namespace emulated
{

/* Called first in a process that uses NCCL. Adds the settings of $NCCL_CONF_FILE to the
 * environment, if they are not set there, and opens the log that NCCL_DEBUG asks for, by default
 * stdout. */
void nccl_read_settings();

/* Which kinds NVLS does, by NCCL_ALGO and NCCL_NVLS_ENABLE: the emulated node has it for more than
 * two ranks, and it is the fastest. ncclInvalidUsage if NCCL_ALGO is not valid. */
struct nccl_algorithms {
    bool nvls_all_reduce = false, nvls_reduce_scatter = false;
};
ncclResult_t nccl_choose_algorithms(int ranks, nccl_algorithms *out);

} // namespace emulated

#endif
