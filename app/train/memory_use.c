#include "app/train/memory_use.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

status memory_use(int64_t *rss_mib, int64_t *private_mib)
{
    static const char path[] = "/proc/self/smaps_rollup";
    struct rusage usage;
    char line[256];
    long long kib = 0, sum_kib = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return FAIL(STATUS_IO, "open %s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Private_Clean: %lld kB", &kib) == 1 ||
            sscanf(line, "Private_Dirty: %lld kB", &kib) == 1)
            sum_kib += kib;
    fclose(file);
    getrusage(RUSAGE_SELF, &usage);
    *rss_mib = usage.ru_maxrss / 1024;
    *private_mib = sum_kib / 1024;
    return STATUS_OK;
}
