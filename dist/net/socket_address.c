#include "dist/net/socket_address.h"

#include "base/host.h"
#include "base/text.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SHOWN_BYTES = 80 };

status socket_address_resolve(const char *host, int port, struct addrinfo **out)
{
    if (port < 0 || port > 65535)
        return FAIL(STATUS_INVALID, "port %d is not in 0..65535", port);
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | (host == NULL ? AI_PASSIVE : 0)};
    int error = getaddrinfo(host, service, &hints, out);
    /* localhost is loopback even if /etc/hosts does not say so (RFC 6761, 6.3). */
    if (error != 0 && host != NULL && strcmp(host, "localhost") == 0)
        error = getaddrinfo(NULL, service, &hints, out);
    if (error == EAI_SYSTEM && (errno == EMFILE || errno == ENFILE))
        return FAIL(STATUS_NO_MEMORY, "%s:%d: %s; raise ulimit -n", host, port, strerror(errno));
    if (error == EAI_MEMORY)
        return FAIL(STATUS_NO_MEMORY, "%s:%d: %s", host ? host : "*", port, gai_strerror(error));
    if (error == EAI_SYSTEM)
        return FAIL(STATUS_UNKNOWN_HOST, "%s:%d: no such host: %s", host, port, strerror(errno));
    if (error != 0)
        return FAIL(STATUS_UNKNOWN_HOST, "%s:%d: no such host: %s", host ? host : "*", port,
                    gai_strerror(error));
    return STATUS_OK;
}

status socket_address_parse(const char *text, int default_port, char *host, size_t host_bytes,
                            int *port)
{
    const char *end = text + strlen(text), *colon = strrchr(text, ':');
    bool bracketed = text[0] == '[';
    const char *closing = bracketed ? strrchr(text, ']') : NULL;
    if (bracketed && (closing == NULL || (closing[1] != '\0' && closing[1] != ':')))
        return FAIL(STATUS_INVALID, "'%.*s' lacks a ']'", SHOWN_BYTES, text);
    /* An IPv6 address without brackets has several colons, and no port. */
    if (bracketed ? closing[1] == '\0' : colon != NULL && strchr(text, ':') != colon)
        colon = NULL;
    const char *from = bracketed ? text + 1 : text;
    const char *to = bracketed ? closing : colon != NULL ? colon : end;
    if (to == from || (size_t)(to - from) >= host_bytes)
        return FAIL(STATUS_INVALID, "'%.*s' is no HOST:PORT", SHOWN_BYTES, text);
    int number = default_port;
    if (colon != NULL && !number_parse(colon + 1, 0, 65535, &number))
        return FAIL(STATUS_INVALID, "'%.*s': the port is 0 to 65535", SHOWN_BYTES, text);
    memcpy(host, from, (size_t)(to - from));
    host[to - from] = '\0';
    *port = number;
    return STATUS_OK;
}

void socket_address_name(const char *host, int port, char *out)
{
    if (strchr(host, ':') != NULL)
        snprintf(out, SOCKET_ADDRESS_BYTES, "[%.300s]:%d", host, port);
    else
        snprintf(out, SOCKET_ADDRESS_BYTES, "%.300s:%d", host, port);
}

void socket_address_describe(const char *host, int port, const struct addrinfo *address, char *out)
{
    char number[INET6_ADDRSTRLEN];
    if (getnameinfo(address->ai_addr, address->ai_addrlen, number, sizeof number, NULL, 0,
                    NI_NUMERICHOST) != 0 ||
        strcmp(number, host) == 0)
        socket_address_name(host, port, out);
    else
        snprintf(out, SOCKET_ADDRESS_BYTES, "%.300s (%s):%d", host, number, port);
}

void socket_address_peer(int fd, char *out)
{
    struct sockaddr_storage there;
    socklen_t size = sizeof there;
    char number[INET6_ADDRSTRLEN + 16], port[16];
    if (getpeername(fd, (struct sockaddr *)&there, &size) != 0 ||
        getnameinfo((struct sockaddr *)&there, size, number, sizeof number, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        memcpy(out, "?", 2);
        return;
    }
    /* IPv4 over a socket of both families. */
    const char *from = strncmp(number, "::ffff:", 7) == 0 ? number + 7 : number;
    socket_address_name(from, atoi(port), out);
}

/* 127.0.0.0/8, ::1, or the former mapped to IPv6. */
static bool is_loopback(const struct sockaddr *address, uint32_t *v4)
{
    *v4 = 0;
    if (address->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, address, sizeof in);
        *v4 = ntohl(in.sin_addr.s_addr);
        return *v4 >> 24 == 127;
    }
    if (address->sa_family != AF_INET6)
        return false;
    struct sockaddr_in6 in6;
    memcpy(&in6, address, sizeof in6);
    return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr) && in6.sin6_addr.s6_addr[12] == 127);
}

/* 0.0.0.0 or ::, mapped or not. */
static bool is_wildcard(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, address, sizeof in);
        return in.sin_addr.s_addr == htonl(INADDR_ANY);
    }
    if (address->sa_family != AF_INET6)
        return false;
    static const unsigned char zeros[4];
    struct sockaddr_in6 in6;
    memcpy(&in6, address, sizeof in6);
    return IN6_IS_ADDR_UNSPECIFIED(&in6.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr) &&
            memcmp(in6.sin6_addr.s6_addr + 12, zeros, sizeof zeros) == 0);
}

static bool is_number(const char *host)
{
    unsigned char bytes[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1;
}

bool socket_address_is_loopback(const char *host)
{
    enum { OWN_NAME = 0x7f000101 }; /* 127.0.1.1 */
    struct addrinfo *list = NULL;
    if (socket_address_resolve(host, 0, &list) != STATUS_OK)
        return false;
    bool all = true;
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        uint32_t v4;
        all = all && is_loopback(a->ai_addr, &v4) && (v4 != OWN_NAME || is_number(host));
    }
    freeaddrinfo(list);
    return all;
}

bool socket_address_says_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0;
}

/* Whether a socket here can have the address. */
static bool can_bind(const struct addrinfo *address)
{
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool can = fd >= 0 && bind(fd, address->ai_addr, address->ai_addrlen) == 0;
    if (fd >= 0)
        close(fd);
    return can;
}

bool socket_address_own_name_is_loopback(void)
{
    char name[256] = "";
    uint32_t v4;
    struct addrinfo *list = NULL;
    bool found = false;
    if (gethostname(name, sizeof name - 1) == 0 &&
        socket_address_resolve(name, 0, &list) == STATUS_OK) {
        const struct addrinfo *a = list;
        while (a != NULL && !can_bind(a))
            a = a->ai_next;
        found = a != NULL && !is_loopback(a->ai_addr, &v4);
        freeaddrinfo(list);
    }
    return !found;
}

bool socket_address_home(const char *host, char *number, char *why)
{
    enum { WHY_BYTES = SOCKET_ADDRESS_BYTES + 80 };
    struct addrinfo *list = NULL;
    uint32_t v4;
    bool home = false;
    if (socket_address_resolve(host, 0, &list) != STATUS_OK ||
        getnameinfo(list->ai_addr, list->ai_addrlen, number, SOCKET_ADDRESS_BYTES, NULL, 0,
                    NI_NUMERICHOST) != 0)
        snprintf(why, WHY_BYTES, "%.300s is not known here", host);
    else if (list->ai_next != NULL)
        snprintf(why, WHY_BYTES, "%.300s stands for several addresses", host);
    else if (is_wildcard(list->ai_addr))
        snprintf(why, WHY_BYTES, "%.300s means all", host);
    else if (is_loopback(list->ai_addr, &v4) && strcmp(host, number) == 0)
        snprintf(why, WHY_BYTES, "%.60s is known to this machine only", number);
    else if (is_loopback(list->ai_addr, &v4))
        snprintf(why, WHY_BYTES, "%.300s stands for %.60s here, by which no other host knows it",
                 host, number);
    else if (!can_bind(list))
        snprintf(why, WHY_BYTES, "%.300s is none of this machine's addresses", host);
    else
        home = true;
    if (list != NULL)
        freeaddrinfo(list);
    return home;
}

int socket_address_port(int fd)
{
    struct sockaddr_storage here;
    socklen_t size = sizeof here;
    if (getsockname(fd, (struct sockaddr *)&here, &size) != 0)
        return -1;
    if (here.ss_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, &here, sizeof in6);
        return ntohs(in6.sin6_port);
    }
    struct sockaddr_in in;
    memcpy(&in, &here, sizeof in);
    return ntohs(in.sin_port);
}

int socket_address_free_port(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    struct sockaddr_in any = {.sin_family = AF_INET};
    int port = 0;
    if (bind(fd, (struct sockaddr *)&any, sizeof any) == 0)
        port = socket_address_port(fd);
    close(fd);
    return port > 0 ? port : 0;
}

/* A line of /proc/net/tcp or tcp6 about a socket that listens. */
typedef struct listening {
    char address[33]; /* words of 32 bits as this machine holds them, in hexadecimal */
    unsigned uid;
    unsigned long inode;
} listening;

/* Who listens on `port`: of user `uid`, if that is not NULL. */
static bool find_listening(const char *path, int port, const uid_t *uid, listening *out)
{
    enum { LISTEN = 0x0a };
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    char line[512];
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        unsigned local_port, state;
        /* sl local:port remote:port st tx:rx tr:when retrnsmt uid timeout inode */
        found = sscanf(line, " %*d: %32[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %u %*s %lu",
                       out->address, &local_port, &state, &out->uid, &out->inode) == 5 &&
                state == LISTEN && local_port == (unsigned)port &&
                (uid == NULL || out->uid == *uid);
    }
    fclose(file);
    return found;
}

bool socket_address_own_listener(int port, char *number)
{
    listening found;
    uid_t self = geteuid();
    uint32_t words[4];
    if (!find_listening("/proc/net/tcp", port, &self, &found) &&
        !find_listening("/proc/net/tcp6", port, &self, &found))
        return false;
    size_t n = strlen(found.address) / 8;
    for (size_t i = 0; i < n; i++) {
        char word[9] = "";
        memcpy(word, found.address + i * 8, 8);
        words[i] = (uint32_t)strtoul(word, NULL, 16);
    }
    return (n == 1 || n == 4) &&
           inet_ntop(n == 1 ? AF_INET : AF_INET6, words, number, SOCKET_ADDRESS_BYTES) != NULL;
}

/* Whether process `pid` has the socket open. */
static bool has_socket(const char *pid, const char *link_text)
{
    char folder[300];
    snprintf(folder, sizeof folder, "/proc/%s/fd", pid);
    DIR *entries = opendir(folder);
    if (entries == NULL)
        return false;
    bool found = false;
    for (struct dirent *e = readdir(entries); e != NULL && !found; e = readdir(entries)) {
        char target[64];
        ssize_t n = readlinkat(dirfd(entries), e->d_name, target, sizeof target - 1);
        if (n > 0) {
            target[n] = '\0';
            found = strcmp(target, link_text) == 0;
        }
    }
    closedir(entries);
    return found;
}

bool socket_address_holder(int port, char *out, size_t size_bytes)
{
    listening listener;
    bool there = find_listening("/proc/net/tcp", port, NULL, &listener) ||
                 find_listening("/proc/net/tcp6", port, NULL, &listener);
    DIR *processes = there ? opendir("/proc") : NULL;
    if (processes == NULL)
        return false;
    char link_text[64];
    snprintf(link_text, sizeof link_text, "socket:[%lu]", listener.inode);
    bool found = false;
    for (struct dirent *e = readdir(processes); e != NULL && !found; e = readdir(processes)) {
        if (isdigit((unsigned char)e->d_name[0]) && has_socket(e->d_name, link_text)) {
            process_name(atoi(e->d_name), out, size_bytes);
            found = true;
        }
    }
    closedir(processes);
    return found;
}

/* The way. */

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
