/* A process beside the launcher that outlives it where it is killed, and then kills the process
 * groups of its workers: what these have started would stay behind, as only they themselves end
 * with their parent. */
#ifndef MNIST_DDP_APP_LAUNCH_GUARDIAN_H
#define MNIST_DDP_APP_LAUNCH_GUARDIAN_H

#include "base/status.h"

#include <sys/types.h>

typedef struct launch_guardian {
    int fd; /* to it; -1: there is none */
} launch_guardian;

/* For up to n groups at a time. It is no child of the caller's, and holds none of its files. */
status launch_guardian_start(int n, launch_guardian *out);

/* Nothing where there is none. A group is to be forgotten before its number can be another's. */
void launch_guardian_watch(const launch_guardian *guardian, pid_t group);
void launch_guardian_forget(const launch_guardian *guardian, pid_t group);

/* Lets it end; it kills the groups that were not forgotten. */
void launch_guardian_close(launch_guardian *guardian);

#endif
