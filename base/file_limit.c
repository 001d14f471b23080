#include "base/file_limit.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

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
