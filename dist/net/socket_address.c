#include "dist/net/socket_address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

status socket_address_resolve(const char *host, int port, struct addrinfo **out)
{
    if (port < 0 || port > 65535)
        return FAIL(STATUS_INVALID, "port %d is not in 0..65535", port);
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | (host == NULL ? AI_PASSIVE : 0)};
    int error = getaddrinfo(host, service, &hints, out);
    /* localhost is loopback also where /etc/hosts does not say so (RFC 6761, 6.3). */
    if (error != 0 && host != NULL && strcmp(host, "localhost") == 0)
        error = getaddrinfo(NULL, service, &hints, out);
    if (error == EAI_SYSTEM)
        return FAIL(STATUS_INVALID, "%s:%d: no such host: %s", host, port, strerror(errno));
    if (error != 0)
        return FAIL(STATUS_INVALID, "%s:%d: no such host: %s", host ? host : "*", port,
                    gai_strerror(error));
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

/* 127.0.0.0/8, ::1, or the former in IPv6's clothes. */
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

/* The inode of the socket that listens on `port`, from /proc/net/tcp or tcp6; 0 if there is none.
 */
static unsigned long listening_inode(const char *path, int port)
{
    enum { LISTEN = 0x0a };
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    char line[512];
    unsigned long found = 0;
    while (found == 0 && fgets(line, sizeof line, file) != NULL) {
        unsigned local_port, state;
        unsigned long inode;
        /* sl local:port remote:port st tx:rx tr:when retrnsmt uid timeout inode */
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*s %*s %lu",
                   &local_port, &state, &inode) == 3 &&
            state == LISTEN && local_port == (unsigned)port)
            found = inode;
    }
    fclose(file);
    return found;
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

/* "pid 4711 (python train.py)"; bytes that would upset a terminal become question marks. */
static void describe_process(const char *pid, char *out, size_t size_bytes)
{
    char path[300], command[100];
    snprintf(path, sizeof path, "/proc/%s/cmdline", pid);
    FILE *file = fopen(path, "re");
    size_t n = file == NULL ? 0 : fread(command, 1, sizeof command - 1, file);
    if (file != NULL)
        fclose(file);
    while (n > 0 && command[n - 1] == '\0')
        n--;
    for (size_t i = 0; i < n; i++) {
        if (command[i] == '\0')
            command[i] = ' ';
        else if (!isprint((unsigned char)command[i]))
            command[i] = '?';
    }
    command[n] = '\0';
    snprintf(out, size_bytes, "pid %s (%s)", pid, n > 0 ? command : "?");
}

bool socket_address_holder(int port, char *out, size_t size_bytes)
{
    unsigned long inode = listening_inode("/proc/net/tcp", port);
    if (inode == 0)
        inode = listening_inode("/proc/net/tcp6", port);
    DIR *processes = inode == 0 ? NULL : opendir("/proc");
    if (processes == NULL)
        return false;
    char link_text[64];
    snprintf(link_text, sizeof link_text, "socket:[%lu]", inode);
    bool found = false;
    for (struct dirent *e = readdir(processes); e != NULL && !found; e = readdir(processes)) {
        if (isdigit((unsigned char)e->d_name[0]) && has_socket(e->d_name, link_text)) {
            describe_process(e->d_name, out, size_bytes);
            found = true;
        }
    }
    closedir(processes);
    return found;
}
