#include "base/host.h"

#include "base/fnv1a.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

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
