#include "base/host.h"

#include "base/fnv1a.h"
#include "base/printable.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
