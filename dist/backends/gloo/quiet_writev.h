/* A writev() for gloo's sockets that raises no SIGPIPE.
 *
 * gloo writes to a peer from whatever thread starts a send. If the peer has closed its socket,
 * writev() would end a process that has not asked to ignore that signal. gloo reads EPIPE as well.
 */
#ifndef MNIST_DDP_DIST_BACKENDS_GLOO_QUIET_WRITEV_H
#define MNIST_DDP_DIST_BACKENDS_GLOO_QUIET_WRITEV_H

#include <sys/uio.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As writev() on a socket; EPIPE without the signal. */
ssize_t quiet_writev(int fd, const struct iovec *pieces, int n);

#ifdef __cplusplus
}
#endif
#endif
