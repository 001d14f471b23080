/* Each call of NCCL becomes a status: the call, its error, and NCCL's own words. */
#ifndef MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_CALL_H
#define MNIST_DDP_DIST_BACKENDS_NCCL_NCCL_CALL_H

#include "base/status.h"

#include <nccl.h>
#include <stddef.h>

/* TRY(NCCL_CALL(ncclCommAbort(comm))). A call that goes on in the background is STATUS_OK: see
 * nccl_comm_settle. STATUS_PEER if NCCL blames a peer, STATUS_IO for the system or the network,
 * STATUS_INVALID for wrong use, else STATUS_DEVICE. */
#define NCCL_CALL(call) nccl_call_status((call), #call, __FILE__, __LINE__)

status nccl_call_status(ncclResult_t code, const char *call, const char *file, int line);

/* The library's version, as "2.28.9"; "" if it does not tell. */
void nccl_call_version(char *out, size_t size_bytes);

#endif
