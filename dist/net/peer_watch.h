/* Sees the death of the other ranks' processes on this host, through pidfds. */
#ifndef MNIST_DDP_DIST_PEER_WATCH_H
#define MNIST_DDP_DIST_PEER_WATCH_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct peer_watch peer_watch;

/* Watches pids[0..n-1], the processes of ranks 0..n-1 as this process's namespace numbers them; its
 * own pid is never dead. STATUS_PEER where one is gone already, STATUS_IO where the kernel has no
 * pidfds (Linux before 5.3). */
status peer_watch_create(const int *pids, int n, peer_watch **out);
void peer_watch_destroy(peer_watch *watch); /* accepts NULL */

/* The lowest rank whose process has ended, waiting up to timeout_ms for one; -1: none. */
int peer_watch_dead(const peer_watch *watch, int timeout_ms);

/* The lowest rank >= from whose process has ended by now; -1: none. */
int peer_watch_next_dead(const peer_watch *watch, int from);

int peer_watch_pid(const peer_watch *watch, int rank);

#ifdef __cplusplus
}
#endif
#endif
