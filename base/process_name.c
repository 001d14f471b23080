#include "base/process_name.h"

#include "base/printable.h"

#include <stdio.h>

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
