/* Which calls of NCCL an operation takes. */
#ifndef MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_OPERATION_H
#define MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_OPERATION_H

#include "dist/collective/collective.h"

#include <nccl.h>

typedef struct nccl_place {
    ncclComm_t comm;
    cudaStream_t stream;
    int rank, world_size;
} nccl_place;

/* STATUS_INVALID, by name, for what NCCL has not. */
status nccl_operation_check(const collective *c);

/* Issues the calls for *c, on device memory and not scaled, between ncclGroupStart and
 * ncclGroupEnd: gather, scatter and all_to_all are several. all_to_all is not in place. */
ncclResult_t nccl_operation_issue(const nccl_place *place, const collective *c);

#endif
