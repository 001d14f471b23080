#include "app/common/machine.h"

#include "base/thread.h"

#include <ctype.h>
#include <gnu/libc-version.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

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

void machine_size(int64_t size_bytes, char *out, size_t out_bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double size = (double)size_bytes;
    size_t unit = 0;
    for (; size >= 1024.0 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        size /= 1024.0;
    if (size_bytes < 0)
        snprintf(out, out_bytes, "unknown");
    else
        snprintf(out, out_bytes, unit == 0 ? "%.0f %s" : "%.1f %s", size, units[unit]);
}
