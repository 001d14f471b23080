/* A process beside the agent. If the agent is killed, it kills the process groups of the workers.
 * The workers themselves end with the agent (PR_SET_PDEATHSIG); what they have started does not.
 * ps shows it as "mnist_ddp: orphan_reaper of PID", the agent's; it ends with the agent. */
#ifndef MNIST_DDP_APP_LAUNCH_ORPHAN_REAPER_H
#define MNIST_DDP_APP_LAUNCH_ORPHAN_REAPER_H

#include "base/status.h"

#include <sys/types.h>

typedef struct orphan_reaper {
    int fd; /* of the pipe to it; -1: there is none */
} orphan_reaper;

/* For up to n groups at a time. It is no child of the caller's, and holds none of its files.
 * STATUS_IO, STATUS_NO_MEMORY. */
status orphan_reaper_start(int n, orphan_reaper *out);

/* A group is to be forgotten before its number can be another's. Nothing is done if there is no
 * reaper. */
void orphan_reaper_watch(const orphan_reaper *reaper, pid_t group);
void orphan_reaper_forget(const orphan_reaper *reaper, pid_t group);

/* Makes it kill the groups that were not forgotten, and end. */
void orphan_reaper_close(orphan_reaper *reaper);

#endif
