/* The UNIX sockets of dist/net/socket.h. */
#include "base/clock.h"
#include "base/log.h"
#include "dist/net/socket.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { NAME_BYTES = 100, BACKLOG = 128, RETRY_MS = 2 };

static status local_address(const char *name, struct sockaddr_un *out, socklen_t *size)
{
    size_t length = strlen(name);
    if (length == 0 || length > NAME_BYTES)
        return FAIL(STATUS_INVALID, "a local socket's name has 1..%d bytes, not %zu", NAME_BYTES,
                    length);
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(out->sun_path + 1, name, length);
    *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    return STATUS_OK;
}

static int make_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* STATUS_PEER if the other side belongs to another user. */
static status check_peer(int fd)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return FAIL(STATUS_IO, "SO_PEERCRED: %s", strerror(errno));
    if (peer.uid != geteuid())
        return FAIL(STATUS_PEER, "process %d belongs to user %u, not to user %u", (int)peer.pid,
                    (unsigned)peer.uid, (unsigned)geteuid());
    return STATUS_OK;
}

status socket_listen_local(const char *name, int *fd)
{
    struct sockaddr_un address;
    socklen_t size = 0;
    TRY(local_address(name, &address, &size));
    int made = make_socket();
    if (made < 0)
        return FAIL(STATUS_IO, "local socket %s: %s", name, strerror(errno));
    if (bind(made, (struct sockaddr *)&address, size) != 0 || listen(made, BACKLOG) != 0) {
        int error = errno;
        close(made);
        return FAIL(STATUS_IO, "listen on local socket %s: %s", name, strerror(error));
    }
    *fd = made;
    return STATUS_OK;
}

status socket_accept_local(int listen_fd, int64_t deadline_ns, int *fd)
{
    for (;;) {
        int made = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (made >= 0) {
            if (check_peer(made) == STATUS_OK) {
                *fd = made;
                return STATUS_OK;
            }
            LOG_W("turned a local connection away: %s", status_text());
            close(made);
        } else if (errno == EAGAIN) {
            status st = socket_await(listen_fd, POLLIN, deadline_ns);
            if (st == STATUS_TIMEOUT)
                return FAIL(st, "nobody connected to the local socket in the time allowed");
            TRY(st);
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return FAIL(STATUS_IO, "accept: %s", strerror(errno));
        }
        if (clock_passed(deadline_ns))
            return FAIL(STATUS_TIMEOUT, "no connection to the local socket in the time allowed");
    }
}

status socket_connect_local(const char *name, int64_t deadline_ns, int *fd)
{
    struct sockaddr_un address;
    socklen_t size = 0;
    TRY(local_address(name, &address, &size));
    int made = make_socket();
    if (made < 0)
        return FAIL(STATUS_IO, "local socket %s: %s", name, strerror(errno));
    status st = STATUS_OK;
    while (connect(made, (struct sockaddr *)&address, size) != 0) {
        /* EAGAIN: the queue of the listener is full, and nothing tells when it no longer is. */
        bool full = errno == EAGAIN;
        if (!full && errno != EINTR) {
            st = FAIL(errno == ECONNREFUSED ? STATUS_PEER : STATUS_IO,
                      "connect to local socket %s: %s", name, strerror(errno));
            goto out;
        }
        if (clock_passed(deadline_ns)) {
            st = FAIL(STATUS_TIMEOUT, "local socket %s: the listener does not accept", name);
            goto out;
        }
        if (full)
            clock_sleep_ms(RETRY_MS);
    }
    st = check_peer(made);
    if (st != STATUS_OK) {
        st = status_context(st, "local socket %s", name);
        goto out;
    }
    *fd = made;
    made = -1; /* handed over */

out:
    if (made >= 0)
        close(made);
    return st;
}

/* A descriptor travels beside one byte of data. */
typedef union control_bytes {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
} control_bytes;

status socket_send_descriptor(int fd, int descriptor, int64_t deadline_ns)
{
    char byte = 'd';
    control_bytes control;
    memset(&control, 0, sizeof control);
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    for (;;) {
        if (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1)
            return STATUS_OK;
        if (errno == EAGAIN) {
            status st = socket_await(fd, POLLOUT, deadline_ns);
            if (st == STATUS_TIMEOUT)
                return FAIL(st, "the peer did not take the descriptor in the time allowed");
            TRY(st);
        } else if (errno != EINTR) {
            bool gone = errno == EPIPE || errno == ECONNRESET;
            return FAIL(gone ? STATUS_PEER : STATUS_IO, "send a descriptor: %s", strerror(errno));
        }
    }
}

/* The descriptor in a message; -1 if there is none. */
static int descriptor_of(struct msghdr *message)
{
    int descriptor = -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof descriptor))
        memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    return descriptor;
}

status socket_receive_descriptor(int fd, int *descriptor, int64_t deadline_ns)
{
    for (;;) {
        char byte;
        control_bytes control;
        struct iovec part = {.iov_base = &byte, .iov_len = 1};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = CMSG_LEN(sizeof(int))}; /* one */
        ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (n == 1) {
            int received = descriptor_of(&message);
            if (received >= 0 && (message.msg_flags & MSG_CTRUNC) != 0) {
                close(received);
                received = -1;
            }
            if (received < 0)
                return FAIL(STATUS_PEER, "the peer sent something other than one descriptor");
            *descriptor = received;
            return STATUS_OK;
        }
        if (n == 0)
            return FAIL(STATUS_PEER, "the peer hung up before it sent a descriptor");
        if (errno == EAGAIN) {
            status st = socket_await(fd, POLLIN, deadline_ns);
            if (st == STATUS_TIMEOUT)
                return FAIL(st, "the peer sent no descriptor in the time allowed");
            TRY(st);
        } else if (errno != EINTR) {
            return FAIL(errno == ECONNRESET ? STATUS_PEER : STATUS_IO, "receive a descriptor: %s",
                        strerror(errno));
        }
    }
}
