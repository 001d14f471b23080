#include "dist/net/socket_route.h"

#include "dist/net/socket_address.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANY_PORT = 9 };

/* The number of an address, "192.168.0.5"; "" of another family. */
static void write_number(const struct sockaddr *address, char out[SOCKET_ROUTE_NUMBER_BYTES])
{
    socklen_t size = address->sa_family == AF_INET    ? sizeof(struct sockaddr_in)
                     : address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                      : 0;
    if (size == 0 ||
        getnameinfo(address, size, out, SOCKET_ROUTE_NUMBER_BYTES, NULL, 0, NI_NUMERICHOST) != 0)
        out[0] = '\0';
}

/* A connected UDP socket has chosen its way, and sent nothing. */
static void find_source(const struct addrinfo *to, char out[SOCKET_ROUTE_NUMBER_BYTES])
{
    struct sockaddr_storage here;
    socklen_t size = sizeof here;
    int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    out[0] = '\0';
    if (fd < 0)
        return;
    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
        getsockname(fd, (struct sockaddr *)&here, &size) == 0)
        write_number((struct sockaddr *)&here, out);
    close(fd);
}

status socket_route_source(const char *host, char out[SOCKET_ROUTE_NUMBER_BYTES])
{
    struct addrinfo *list = NULL;
    char number[SOCKET_ROUTE_NUMBER_BYTES] = "";
    status st = socket_address_resolve(host, ANY_PORT, &list);
    if (st == STATUS_UNKNOWN_HOST)
        return FAIL(st, "%s: no such host", host); /* nobody gave that port */
    TRY(st);
    for (const struct addrinfo *a = list; a != NULL && number[0] == '\0'; a = a->ai_next)
        find_source(a, number);
    freeaddrinfo(list);
    if (number[0] == '\0')
        return FAIL(STATUS_IO, "no route to %s: %s", host, strerror(errno));
    memcpy(out, number, sizeof number);
    return STATUS_OK;
}

/* Of the address, into `name`; "" if no interface has it. */
static void find_interface(const char *number, char name[SOCKET_ROUTE_NAME_BYTES],
                           unsigned int *flags)
{
    struct ifaddrs *list = NULL;
    char own[SOCKET_ROUTE_NUMBER_BYTES];
    name[0] = '\0';
    if (getifaddrs(&list) != 0)
        return;
    for (const struct ifaddrs *i = list; i != NULL && name[0] == '\0'; i = i->ifa_next) {
        if (i->ifa_addr == NULL)
            continue;
        write_number(i->ifa_addr, own);
        if (own[0] != '\0' && strcmp(own, number) == 0) {
            snprintf(name, SOCKET_ROUTE_NAME_BYTES, "%.32s", i->ifa_name);
            *flags = i->ifa_flags;
        }
    }
    freeifaddrs(list);
}

/* Both "" if there is no route. Keeps this thread's message. */
static void find_way(const char *host, char number[SOCKET_ROUTE_NUMBER_BYTES],
                     char name[SOCKET_ROUTE_NAME_BYTES], unsigned int *flags)
{
    status_kept before;
    number[0] = name[0] = '\0';
    *flags = 0;
    status_keep(&before);
    if (socket_route_source(host, number) == STATUS_OK)
        find_interface(number, name, flags);
    status_restore(&before);
}

void socket_route_describe(const char *host, char out[SOCKET_ROUTE_BYTES])
{
    char number[SOCKET_ROUTE_NUMBER_BYTES], name[SOCKET_ROUTE_NAME_BYTES];
    unsigned int flags;
    find_way(host, number, name, &flags);
    if (name[0] != '\0')
        snprintf(out, SOCKET_ROUTE_BYTES, "%s (%s)", name, number);
    else
        snprintf(out, SOCKET_ROUTE_BYTES, "%s", number);
}

void socket_route_interface(const char *host, char out[SOCKET_ROUTE_NAME_BYTES])
{
    char number[SOCKET_ROUTE_NUMBER_BYTES];
    unsigned int flags;
    find_way(host, number, out, &flags);
    if ((flags & IFF_LOOPBACK) != 0)
        out[0] = '\0';
}
