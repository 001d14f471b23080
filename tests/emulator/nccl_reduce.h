/* Emulated NCCL: its types, and sums over ranks. */
#ifndef MNIST_DDP_TESTS_EMULATOR_NCCL_REDUCE_H
#define MNIST_DDP_TESTS_EMULATOR_NCCL_REDUCE_H

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace emulated
{

size_t nccl_type_bytes(ncclDataType_t type); /* 0: unknown */

/* out[i] = pieces[0][i] op pieces[1][i] op ..., in that order. 16-bit types are summed as float and
 * rounded once. For averages, floats are multiplied by 1/n first, and sums of integers divided at
 * the end, as the real library does. */
void nccl_reduce(const std::vector<const void *> &pieces, ncclDataType_t type, ncclRedOp_t op,
                 size_t count, void *out);

} // namespace emulated

#endif
