/* What a report says of NCCL. */
#ifndef MNIST_DDP_APP_COMMON_NCCL_RECORD_H
#define MNIST_DDP_APP_COMMON_NCCL_RECORD_H

#include <jansson.h>

/* {"version": "2.28.9", "algo": "^NVLS,NVLSTree", "proto": null, "nvls": false}: algo and proto as
 * NCCL_ALGO and NCCL_PROTO have them, null if they are not set; nvls: whether it may be used for
 * an all-reduce, null if that is not clear from the settings. For a process that has used NCCL.
 */
json_t *nccl_record(void);

#endif
