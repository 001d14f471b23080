#include "dist/net/socket.h"

#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Addresses. */

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

/* The port that a socket is bound to; -1 with errno. */
static int port_of(int fd)
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
        port = port_of(fd);
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

/* Who listens on a TCP port of this host, as in "pid 4711 (python train.py)". false if /proc does
 * not say it. */
static bool find_holder(int port, char *out, size_t size_bytes)
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

/* TCP sockets. */

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
    if (!find_holder(port, holder, sizeof holder))
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
    int had = port_of(made);
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

static status move_all(int fd, uint8_t *data, size_t size_bytes, int64_t deadline_ns, short events)
{
    const char *verb = events == POLLIN ? "received" : "sent";
    size_t done = 0;
    while (done < size_bytes) {
        size_t moved = 0;
        status st = events == POLLIN
                        ? socket_receive_some(fd, data + done, size_bytes - done, &moved)
                        : socket_send_some(fd, data + done, size_bytes - done, &moved);
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
