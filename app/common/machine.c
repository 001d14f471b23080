#include "app/common/machine.h"

#include "app/common/json_value.h"
#include "base/thread.h"
#include "dist/net/socket.h"
#include "dist/process_group/backend_choice.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <gnu/libc-version.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The rest of the first line of a file that begins with `key`, without quotes. */
static bool find_line(const char *path, const char *key, char *out, size_t size_bytes)
{
    char line[512];
    bool found = false;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, strlen(key)) != 0)
            continue;
        char *text = line + strlen(key);
        text += strspn(text, " \t:=\"");
        text[strcspn(text, "\"\n")] = '\0';
        snprintf(out, size_bytes, "%s", text);
        found = true;
    }
    fclose(file);
    return found;
}

static int64_t kilobytes(const char *key)
{
    char text[64];
    long long value = -1;
    if (!find_line("/proc/meminfo", key, text, sizeof text) || sscanf(text, "%lld", &value) != 1)
        return -1;
    return (int64_t)value * 1024;
}

static int64_t limit(__rlimit_resource_t which)
{
    struct rlimit value;
    if (getrlimit(which, &value) != 0)
        return -1;
    return value.rlim_cur > INT64_MAX ? INT64_MAX : (int64_t)value.rlim_cur;
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun ..." */
static void read_driver(char *out, size_t size_bytes)
{
    char line[512];
    if (!find_line("/proc/driver/nvidia/version", "NVRM version", line, sizeof line))
        return;
    for (char *at = line; *at != '\0'; at++) {
        size_t length = strspn(at, "0123456789.");
        if (length >= 5 && memchr(at, '.', length) != NULL && !isalnum((unsigned char)at[length])) {
            snprintf(out, size_bytes, "%.*s", (int)length, at);
            return;
        }
    }
}

void machine_read(machine *out)
{
    struct utsname name;
    struct statvfs shm;
    *out = (machine){.cores = cores_count(), .shm_bytes = -1, .shm_free_bytes = -1};
    find_line("/etc/os-release", "PRETTY_NAME", out->system, sizeof out->system);
    if (uname(&name) == 0)
        snprintf(out->kernel, sizeof out->kernel, "%.60s %.60s %.60s", name.sysname, name.release,
                 name.machine);
    snprintf(out->libc, sizeof out->libc, "glibc %s", gnu_get_libc_version());
    find_line("/proc/cpuinfo", "model name", out->processor, sizeof out->processor);
    read_driver(out->driver, sizeof out->driver);
    out->memory_bytes = kilobytes("MemTotal");
    out->memory_free_bytes = kilobytes("MemAvailable");
    if (statvfs("/dev/shm", &shm) == 0) {
        out->shm_bytes = (int64_t)(shm.f_blocks * shm.f_frsize);
        out->shm_free_bytes = (int64_t)(shm.f_bavail * shm.f_frsize);
    }
    out->max_files = limit(RLIMIT_NOFILE);
    out->max_processes = limit(RLIMIT_NPROC);
}

size_text machine_size(int64_t size_bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_text out = {"unknown"};
    double size = (double)size_bytes;
    size_t unit = 0;
    for (; size >= 1024.0 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        size /= 1024.0;
    if (size_bytes >= 0)
        snprintf(out.text, sizeof out.text, unit == 0 ? "%.0f %s" : "%.1f %s", size, units[unit]);
    return out;
}

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

static json_t *variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL ? json_value_text(value) : json_null();
}

json_t *nccl_record(void)
{
    char version[NCCL_VERSION_BYTES];
    nccl_nvls nvls = nccl_settings_nvls();
    nccl_settings_version(version);
    return json_pack("{s:s, s:o, s:o, s:o}", "version", version, "algo", variable("NCCL_ALGO"),
                     "proto", variable("NCCL_PROTO"), "nvls",
                     nvls == NCCL_NVLS_UNKNOWN ? json_null()
                                               : json_boolean(nvls == NCCL_NVLS_ALLOWED));
}
