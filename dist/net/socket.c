#include "dist/net/socket.h"

#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "dist/net/socket_address.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { ACCEPT_TRIES = 64 };

/* Descriptors or memory, of this process or host. */
static bool is_short(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/* What a failed call means: nobody listens, the peer is gone, or something else is wrong. */
static status failure_of(int error)
{
    switch (error) {
    case EMFILE:
    case ENFILE:
        return STATUS_NO_MEMORY; /* to try again does not help */
    case ECONNREFUSED:
        return STATUS_REFUSED;
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
    case ETIMEDOUT:
        return STATUS_PEER;
    default:
        return STATUS_IO;
    }
}

static const char *reason_of(int error)
{
    if (error == ECONNREFUSED)
        return "connection refused";
    return error == ETIMEDOUT ? "no answer" : file_limit_reason(error);
}

status socket_await(int fd, short events, int64_t deadline_ns)
{
    for (;;) {
        struct pollfd entry = {.fd = fd, .events = events};
        int n = poll(&entry, 1, clock_remaining_ms(deadline_ns));
        if (n > 0)
            return STATUS_OK;
        if (n < 0 && errno != EINTR)
            return FAIL(STATUS_IO, "poll: %s", strerror(errno));
        if (clock_passed(deadline_ns))
            return STATUS_TIMEOUT;
    }
}

static void set_options(int fd)
{
    int on = 1;
    /* Latency and the discovery of dead hosts suffer without them; nothing else does. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int idle_s = 30, interval_s = 10, probes = 3;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/* One address; the error is errno's. */
static int try_listen(const struct addrinfo *address, int *fd)
{
    int made = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0)
        return errno;
    int on = 1, off = 0, error = 0;
    if (address->ai_family == AF_INET6)
        (void)setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(made, address->ai_addr, address->ai_addrlen) != 0 || listen(made, SOMAXCONN) != 0) {
        error = errno;
        close(made);
        return error;
    }
    *fd = made;
    return 0;
}

static status listen_failed(const char *host, int port, int error)
{
    char where[SOCKET_ADDRESS_BYTES];
    socket_address_name(host ? host : "all addresses", port, where);
    if (error != EADDRINUSE)
        return FAIL(STATUS_IO, "listen on %s: %s", where, reason_of(error));
    char holder[256];
    if (!socket_address_holder(port, holder, sizeof holder))
        memcpy(holder, "a process that cannot be told", sizeof "a process that cannot be told");
    int spare = socket_address_free_port();
    if (spare == 0)
        return FAIL(STATUS_IO, "listen on %s: the port is taken by %s; choose another one", where,
                    holder);
    return FAIL(STATUS_IO, "listen on %s: the port is taken by %s; port %d is free", where, holder,
                spare);
}

status socket_listen(const char *host, int port, int *fd, int *bound_port)
{
    struct addrinfo *list = NULL;
    TRY(socket_address_resolve(host, port, &list));
    int made = -1, error = EADDRNOTAVAIL;
    /* An IPv6 socket on "all addresses" takes IPv4 too, so it is tried first and one is enough. */
    for (int pass = 0; pass < 2 && made < 0; pass++) {
        for (const struct addrinfo *a = list; a != NULL && made < 0; a = a->ai_next) {
            if (host == NULL && (pass == 0) != (a->ai_family == AF_INET6))
                continue;
            int failed = try_listen(a, &made);
            if (failed != 0 && error != EADDRINUSE)
                error = failed;
        }
    }
    freeaddrinfo(list);
    if (made < 0)
        return listen_failed(host, port, error);
    int had = socket_address_port(made);
    if (had < 0) {
        error = errno;
        close(made);
        return FAIL(STATUS_IO, "getsockname: %s", strerror(error));
    }
    *fd = made;
    *bound_port = had;
    return STATUS_OK;
}

status socket_accept(int listen_fd, int *fd)
{
    /* A connection that broke while it waited says nothing of the next one. But after a few
     * failures that is named. */
    for (int tries = 0;; tries++) {
        int made = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (made >= 0) {
            set_options(made);
            *fd = made;
            return STATUS_OK;
        }
        if (errno == EAGAIN) {
            *fd = -1;
            return STATUS_OK;
        }
        if (is_short(errno))
            return FAIL(STATUS_NO_MEMORY, "accept: %s", strerror(errno));
        bool broken = errno == EINTR || errno == ECONNABORTED || errno == EPROTO ||
                      failure_of(errno) == STATUS_PEER;
        if (!broken || tries == ACCEPT_TRIES)
            return FAIL(STATUS_IO, "accept: %s", strerror(errno));
    }
}

/* A port of the ephemeral range that nobody listens on can be connected to itself. */
static bool is_own_echo(int fd)
{
    struct sockaddr_storage here, there;
    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    socklen_t here_size = sizeof here, there_size = sizeof there;
    if (getsockname(fd, (struct sockaddr *)&here, &here_size) != 0 ||
        getpeername(fd, (struct sockaddr *)&there, &there_size) != 0)
        return false;
    return here_size == there_size && memcmp(&here, &there, here_size) == 0;
}

/* One address; errno's value or 0. */
static int try_connect(const struct addrinfo *address, int64_t deadline_ns, int *fd)
{
    int made = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0)
        return errno;
    int error = 0;
    if (connect(made, address->ai_addr, address->ai_addrlen) != 0)
        error = errno;
    if (error == EINPROGRESS || error == EINTR) {
        socklen_t size = sizeof error;
        if (socket_await(made, POLLOUT, deadline_ns) != STATUS_OK)
            error = ETIMEDOUT;
        else if (getsockopt(made, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
            error = errno;
    }
    if (error == 0 && is_own_echo(made))
        error = ECONNREFUSED;
    if (error != 0) {
        close(made);
        return error;
    }
    set_options(made);
    *fd = made;
    return 0;
}

status socket_connect(const char *host, int port, int64_t deadline_ns, int *fd)
{
    struct addrinfo *list = NULL;
    TRY(socket_address_resolve(host, port, &list));
    int left = 0, made = -1;
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next)
        left++;
    status st = STATUS_OK;
    for (const struct addrinfo *a = list; a != NULL && made < 0; a = a->ai_next, left--) {
        /* An address that drops packets leaves the others their share of the time. */
        int64_t now = clock_now_ns();
        int64_t until = now < deadline_ns ? now + (deadline_ns - now) / left : deadline_ns;
        int error = try_connect(a, until, &made);
        if (error == 0)
            break;
        char where[SOCKET_ADDRESS_BYTES];
        socket_address_describe(host, port, a, where);
        st = FAIL(error == ETIMEDOUT ? STATUS_TIMEOUT : failure_of(error), "%s: %s", where,
                  reason_of(error));
    }
    freeaddrinfo(list);
    if (made < 0)
        return st;
    *fd = made;
    return STATUS_OK;
}

status socket_send_some(int fd, const void *data, size_t size_bytes, size_t *moved)
{
    *moved = 0;
    for (;;) {
        ssize_t n = send(fd, data, size_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            *moved = (size_t)n;
            return STATUS_OK;
        }
        if (errno == EAGAIN)
            return STATUS_OK;
        if (errno != EINTR)
            return FAIL(failure_of(errno), "send: %s", strerror(errno));
    }
}

status socket_receive_some(int fd, void *data, size_t size_bytes, size_t *moved)
{
    *moved = 0;
    if (size_bytes == 0)
        return STATUS_OK;
    for (;;) {
        ssize_t n = recv(fd, data, size_bytes, MSG_DONTWAIT);
        if (n > 0) {
            *moved = (size_t)n;
            return STATUS_OK;
        }
        if (n == 0)
            return FAIL(STATUS_PEER, "the other side hung up");
        if (errno == EAGAIN)
            return STATUS_OK;
        if (errno != EINTR)
            return FAIL(failure_of(errno), "receive: %s", strerror(errno));
    }
}

typedef status (*move_fn)(int fd, uint8_t *data, size_t size_bytes, size_t *moved);

static status send_part(int fd, uint8_t *data, size_t size_bytes, size_t *moved)
{
    return socket_send_some(fd, data, size_bytes, moved);
}

static status receive_part(int fd, uint8_t *data, size_t size_bytes, size_t *moved)
{
    return socket_receive_some(fd, data, size_bytes, moved);
}

static status move_all(int fd, uint8_t *data, size_t size_bytes, int64_t deadline_ns, short events)
{
    move_fn move = events == POLLIN ? receive_part : send_part;
    const char *verb = events == POLLIN ? "received" : "sent";
    size_t done = 0;
    while (done < size_bytes) {
        size_t moved = 0;
        status st = move(fd, data + done, size_bytes - done, &moved);
        done += moved;
        if (st == STATUS_OK && moved > 0)
            continue;
        if (st == STATUS_OK)
            st = socket_await(fd, events, deadline_ns);
        if (st == STATUS_TIMEOUT)
            return FAIL(st, "%s %zu of %zu bytes in the time allowed", verb, done, size_bytes);
        if (st != STATUS_OK)
            return status_context(st, "%s %zu of %zu bytes", verb, done, size_bytes);
    }
    return STATUS_OK;
}

status socket_send(int fd, const void *data, size_t size_bytes, int64_t deadline_ns)
{
    /* Only read from: move_all serves both directions. */
    return move_all(fd, (uint8_t *)(uintptr_t)data, size_bytes, deadline_ns, POLLOUT);
}

status socket_receive(int fd, void *data, size_t size_bytes, int64_t deadline_ns)
{
    return move_all(fd, data, size_bytes, deadline_ns, POLLIN);
}

/* UNIX sockets. */

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
        /* EAGAIN: the queue of the listener is full, and nothing reports when it no longer is. */
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

/* The breaker. */

void socket_breaker_init(socket_breaker *breaker)
{
    *breaker = (socket_breaker){.fd = -1};
    pthread_mutex_init(&breaker->lock, NULL);
}

void socket_breaker_close(socket_breaker *breaker)
{
    if (breaker != NULL)
        pthread_mutex_destroy(&breaker->lock);
}

/* The lock is held. */
static void shut_down(const socket_breaker *breaker)
{
    if (breaker->broken && breaker->fd >= 0)
        (void)shutdown(breaker->fd, SHUT_RDWR);
}

void socket_breaker_set(socket_breaker *breaker, int fd)
{
    if (breaker == NULL)
        return;
    pthread_mutex_lock(&breaker->lock);
    breaker->fd = fd;
    shut_down(breaker);
    pthread_mutex_unlock(&breaker->lock);
}

void socket_breaker_break(socket_breaker *breaker)
{
    if (breaker == NULL)
        return;
    pthread_mutex_lock(&breaker->lock);
    breaker->broken = true;
    shut_down(breaker);
    pthread_mutex_unlock(&breaker->lock);
}

bool socket_breaker_is_broken(socket_breaker *breaker)
{
    if (breaker == NULL)
        return false;
    pthread_mutex_lock(&breaker->lock);
    bool broken = breaker->broken;
    pthread_mutex_unlock(&breaker->lock);
    return broken;
}
