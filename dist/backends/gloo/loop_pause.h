/* An epoll_wait() for gloo's event loop that yields its core instead of spinning.
 *
 * gloo's loop thread does not wait for a connection that another thread is using: it tries the
 * lock, and if that is held it leaves the event to the next round. That round comes at once,
 * because epoll reports the event again. So the loop spins while the other thread writes. If both
 * share a core, it spins for a whole time slice (4 ms at 250 Hz) before the writer goes on.
 */
#ifndef MNIST_DDP_DIST_BACKENDS_GLOO_LOOP_PAUSE_H
#define MNIST_DDP_DIST_BACKENDS_GLOO_LOOP_PAUSE_H

#include <sys/epoll.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As epoll_wait(). A thread that gets its events without waiting, again and again, yields its core
 * in between. */
int loop_pause_epoll_wait(int fd, struct epoll_event *events, int max_events, int timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
