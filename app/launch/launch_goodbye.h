/* The launchers' farewell: node 0 holds the store, so it leaves last. */
#ifndef MNIST_DDP_APP_LAUNCH_GOODBYE_H
#define MNIST_DDP_APP_LAUNCH_GOODBYE_H

#include "app/launch/launch.h"

/* Another node tells the store that its ranks have ended. Node 0, whose ranks ended well (`code`
 * 0), waits up to LAUNCH_GOODBYE_MS for all others to do so, or until `stop_fd` has something to
 * read. What fails here is no failure of the run: at most a line of the log. */
void launch_goodbye(const launch_plan *plan, int port, int code, int stop_fd);

#endif
