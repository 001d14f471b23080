/* What stands behind the calls of dist/process_group.h, one per kind of collective. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_CALLS_H
#define MNIST_DDP_DIST_PROCESS_GROUP_CALLS_H

#include "dist/process_group_ops.h"

/* STATUS_INVALID with what is wrong. */
status process_group_check_options(const process_group_options *options);

/* Checks the collective, numbers it and starts it. */
status process_group_launch(process_group *group, const collective *c, device_stream *stream,
                            work **out_work);

/* STATUS_INVALID while works are still to be waited for: they come before a call that blocks. */
status process_group_check_idle(process_group *group, collective_kind kind);

/* Copies a label for collectives of this group: "bucket 0: fc2.weight, fc2.bias". *out lives as
 * long as the group. */
status process_group_keep_label(process_group *group, const char *text, const char **out);

#endif
