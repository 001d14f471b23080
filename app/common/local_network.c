#include "app/common/local_network.h"

#include "dist/net/socket_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HOST_BYTES = 256 };

/* The bits of an address, 4 or 16 bytes of them; 0 for another family. */
static size_t bytes_of(const struct sockaddr *address, unsigned char out[16])
{
    if (address != NULL && address->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, address, sizeof in);
        memcpy(out, &in.sin_addr, 4);
        return 4;
    }
    if (address != NULL && address->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, address, sizeof in6);
        memcpy(out, &in6.sin6_addr, 16);
        return 16;
    }
    return 0;
}

static bool fill(const struct ifaddrs *entry, local_address *out)
{
    unsigned char bits[16], mask[16];
    size_t n = bytes_of(entry->ifa_addr, bits);
    if (n == 0 || (entry->ifa_flags & IFF_UP) == 0)
        return false;
    *out = (local_address){.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0};
    snprintf(out->interface, sizeof out->interface, "%s", entry->ifa_name);
    inet_ntop(n == 4 ? AF_INET : AF_INET6, bits, out->number, sizeof out->number);
    out->link_local = n == 16 && bits[0] == 0xfe && (bits[1] & 0xc0) == 0x80;
    if (bytes_of(entry->ifa_netmask, mask) == n)
        for (size_t i = 0; i < n; i++)
            out->prefix_bits += __builtin_popcount(mask[i]);
    return true;
}

int local_network_list(local_address *out)
{
    struct ifaddrs *list = NULL;
    int n = 0;
    if (getifaddrs(&list) != 0)
        return 0;
    for (const struct ifaddrs *e = list; e != NULL && n < LOCAL_NETWORK_MAX; e = e->ifa_next)
        if (fill(e, &out[n]))
            n++;
    freeifaddrs(list);
    return n;
}

static bool has_number(const local_address *list, int n, const char *number)
{
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].number, number) == 0)
            return true;
    return strncmp(number, "127.", 4) == 0;
}

bool local_network_owns(const char *host)
{
    local_address own[LOCAL_NETWORK_MAX];
    struct addrinfo *list = NULL;
    char name[HOST_BYTES] = "";
    if (gethostname(name, sizeof name - 1) == 0 && strcmp(host, name) == 0)
        return true;
    int n = local_network_list(own);
    if (socket_address_resolve(host, 0, &list) != STATUS_OK)
        return false;
    bool found = false;
    for (const struct addrinfo *a = list; a != NULL && !found; a = a->ai_next) {
        unsigned char bits[16];
        char number[INET6_ADDRSTRLEN];
        size_t size = bytes_of(a->ai_addr, bits);
        found = size > 0 &&
                inet_ntop(size == 4 ? AF_INET : AF_INET6, bits, number, sizeof number) != NULL &&
                has_number(own, n, number);
    }
    freeaddrinfo(list);
    return found;
}

void local_network_name(const char *bind, int port, char *out)
{
    char host[HOST_BYTES] = "";
    bool everywhere = strcmp(bind, "0.0.0.0") == 0 || strcmp(bind, "::") == 0;
    if (!everywhere || gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "%s", bind);
    socket_address_name(host, port, out);
}

void local_network_describe(char *out, size_t size_bytes)
{
    local_address own[LOCAL_NETWORK_MAX];
    int n = local_network_list(own);
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < n; i++) {
        if (own[i].loopback || own[i].link_local || used + 80 > size_bytes)
            continue;
        used += (size_t)snprintf(out + used, size_bytes - used, "%s%s on %s", used ? ", " : "",
                                 own[i].number, own[i].interface);
    }
    if (used == 0)
        snprintf(out, size_bytes, "only loopback");
}
