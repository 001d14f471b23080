#include "dist/backends/gloo/loopback_mss.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <sys/socket.h>

enum { SEGMENT_BYTES = 1448 }; /* of Ethernet, less TCP's timestamps */

static _Thread_local loopback_mss thread_mode;

void loopback_mss_set(loopback_mss mode)
{
    thread_mode = mode;
}

static bool on_loopback(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage room;
    } address;
    socklen_t size = sizeof address;
    if (getsockname(fd, &address.any, &size) != 0)
        return false;
    if (address.any.sa_family == AF_INET)
        return ntohl(address.v4.sin_addr.s_addr) >> 24 == 127;
    return address.any.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&address.v6.sin6_addr);
}

int loopback_mss_listen(int fd, int backlog)
{
    if (thread_mode == LOOPBACK_MSS_CLAMP && on_loopback(fd)) {
        int segment = SEGMENT_BYTES;
        /* Without it gloo is slow, not wrong. */
        (void)setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment);
    }
    return listen(fd, backlog);
}
