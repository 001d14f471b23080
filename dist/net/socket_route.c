#include "dist/net/socket_route.h"

#include "dist/net/socket_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANY_PORT = 9 };

/* The number of an address, "192.168.0.5"; "" of another family. */
static void write_number(const struct sockaddr *address, char out[INET6_ADDRSTRLEN])
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    out[0] = '\0';
    if (address->sa_family == AF_INET) {
        memcpy(&v4, address, sizeof v4);
        (void)inet_ntop(AF_INET, &v4.sin_addr, out, INET6_ADDRSTRLEN);
    } else if (address->sa_family == AF_INET6) {
        memcpy(&v6, address, sizeof v6);
        (void)inet_ntop(AF_INET6, &v6.sin6_addr, out, INET6_ADDRSTRLEN);
    }
}

/* A connected UDP socket has chosen its way, and sent nothing. */
static void find_source(const struct addrinfo *to, char out[INET6_ADDRSTRLEN])
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

static void find_interface(const char *number, char *out, size_t size_bytes)
{
    struct ifaddrs *list = NULL;
    char own[INET6_ADDRSTRLEN];
    snprintf(out, size_bytes, "%s", number);
    if (getifaddrs(&list) != 0)
        return;
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL)
            continue;
        write_number(i->ifa_addr, own);
        if (own[0] != '\0' && strcmp(own, number) == 0) {
            snprintf(out, size_bytes, "%.32s (%s)", i->ifa_name, number);
            break;
        }
    }
    freeifaddrs(list);
}

void socket_route_describe(const char *host, char out[SOCKET_ROUTE_BYTES])
{
    struct addrinfo *list = NULL;
    char number[INET6_ADDRSTRLEN] = "";
    out[0] = '\0';
    if (socket_address_resolve(host, ANY_PORT, &list) != STATUS_OK)
        return;
    for (const struct addrinfo *a = list; a != NULL && number[0] == '\0'; a = a->ai_next)
        find_source(a, number);
    freeaddrinfo(list);
    if (number[0] != '\0')
        find_interface(number, out, SOCKET_ROUTE_BYTES);
}
