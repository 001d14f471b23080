/* Whether a process group can be made as asked. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_PROCESS_GROUP_CHECK_H
#define MNIST_DDP_DIST_PROCESS_GROUP_PROCESS_GROUP_CHECK_H

#include "dist/collective/process_group_options.h"

/* STATUS_INVALID with what is wrong. */
status process_group_check_options(const process_group_options *options);

#endif
