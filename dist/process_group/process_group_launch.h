/* How the collectives of process_group.h are launched, for them and for ddp and param_server. */
#ifndef MNIST_DDP_DIST_PROCESS_GROUP_PROCESS_GROUP_LAUNCH_H
#define MNIST_DDP_DIST_PROCESS_GROUP_PROCESS_GROUP_LAUNCH_H

#include "dist/collective/collective.h"

typedef struct process_group process_group;
typedef struct work work;
typedef struct device_stream device_stream;

/* Checks the collective, numbers it and starts it. */
status process_group_launch(process_group *group, const collective *c, device_stream *stream,
                            work **out_work);

/* STATUS_INVALID while works are still to be waited for: no blocking call may come before that. */
status process_group_check_idle(process_group *group, collective_kind kind);

/* Copies a label for collectives of this group: "bucket 0: fc2.weight, fc2.bias". *out lives as
 * long as the group. */
status process_group_keep_label(process_group *group, const char *text, const char **out);

#endif
