#include "base/host.h"

#include "base/digest.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

const char *environment_text(const char *name)
{
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? text : NULL;
}

uint64_t host_number(void)
{
    char text[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re"); /* its size reads as 0 */
    if (file == NULL)
        return 0;
    bool there = fgets(text, sizeof text, file) != NULL;
    fclose(file);
    return there ? fnv1a(FNV1A_START, text, strlen(text)) : 0;
}

enum { COMMAND_BYTES = 100, SHOWN_BYTES = 200 };

void process_name(int pid, char *out, size_t size_bytes)
{
    char path[64], command[COMMAND_BYTES], shown[SHOWN_BYTES];
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    FILE *file = fopen(path, "re");
    size_t n = file == NULL ? 0 : fread(command, 1, sizeof command - 1, file);
    if (file != NULL)
        fclose(file);
    while (n > 0 && command[n - 1] == '\0')
        n--;
    for (size_t i = 0; i < n; i++) {
        if (command[i] == '\0')
            command[i] = ' ';
    }
    command[n] = '\0';
    printable_copy(PRINTABLE_LINE, command, shown, sizeof shown);
    snprintf(out, size_bytes, "pid %d (%s)", pid, n > 0 ? shown : "?");
}

static bool is_executable(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode) && access(path, X_OK) == 0;
}

bool executable_find(const char *name, char out[FILE_PATH_BYTES])
{
    if (strchr(name, '/') != NULL)
        return snprintf(out, FILE_PATH_BYTES, "%s", name) < FILE_PATH_BYTES && is_executable(out);
    const char *path = getenv("PATH");
    for (const char *at = path != NULL ? path : "/usr/local/bin:/usr/bin:/bin";;) {
        int length = (int)strcspn(at, ":");
        bool here = length == 0; /* an empty entry is this folder */
        if (snprintf(out, FILE_PATH_BYTES, "%.*s/%s", here ? 1 : length, here ? "." : at, name) <
                FILE_PATH_BYTES &&
            is_executable(out))
            return true;
        if (at[length] == '\0')
            return false;
        at += length + 1;
    }
}

/* How many files may be open. */

void file_limit_set(uint64_t soft)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || soft > limit.rlim_max)
        return;
    limit.rlim_cur = soft;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

uint64_t file_limit_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return UINT64_MAX;
    file_limit_set(limit.rlim_max);
    return limit.rlim_cur;
}

const char *file_limit_reason(int error)
{
    return error == EMFILE ? "too many open files in this process; raise ulimit -n"
                           : strerror(error);
}

status file_limit_check(int n)
{
    int had = 0, error = 0, *fds = calloc((size_t)n + 1, sizeof *fds);
    if (fds == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d descriptors", n);
    while (had < n && error == 0) {
        fds[had] = open("/", O_PATH | O_CLOEXEC);
        if (fds[had] < 0)
            error = errno;
        else
            had++;
    }
    for (int i = 0; i < had; i++)
        close(fds[i]);
    free(fds);
    if (error == 0)
        return STATUS_OK;
    return FAIL(STATUS_IO, "%d descriptors, and %d are left: %s", n, had, file_limit_reason(error));
}
