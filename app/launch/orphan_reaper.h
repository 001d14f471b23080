/* A process beside the launcher that outlives it where it is killed, and then kills the process
 * groups of its workers: what these have started would stay behind, as only they themselves end
 * with their parent. */
#ifndef MNIST_DDP_APP_LAUNCH_ORPHAN_REAPER_H
#define MNIST_DDP_APP_LAUNCH_ORPHAN_REAPER_H

#include "base/status.h"

#include <sys/types.h>

typedef struct orphan_reaper {
    int fd; /* to it; -1: there is none */
} orphan_reaper;

/* For up to n groups at a time. It is no child of the caller's, and holds none of its files. */
status orphan_reaper_start(int n, orphan_reaper *out);

/* Nothing where there is none. A group is to be forgotten before its number can be another's. */
void orphan_reaper_watch(const orphan_reaper *reaper, pid_t group);
void orphan_reaper_forget(const orphan_reaper *reaper, pid_t group);

/* Lets it end; it kills the groups that were not forgotten. */
void orphan_reaper_close(orphan_reaper *reaper);

#endif
