#include "base/file_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

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
