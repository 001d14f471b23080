#include "dist/health/process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STAT_BYTES = 512 };

/* State and start. They come after the name, which may hold anything and ends at the last bracket.
 * false: they were not read; errno says why. */
static bool read_stat(int pid, char *state, uint64_t *start)
{
    char path[64], text[STAT_BYTES];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    errno = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *end = strrchr(text, ')');
    return end != NULL && sscanf(end,
                                 ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
                                 "%*d %*d %*d %" SCNu64,
                                 state, start) == 2;
}

process_id process_self(void)
{
    process_id self = {.pid = (int32_t)getpid()};
    char state = '\0';
    if (!read_stat(self.pid, &state, &self.start))
        self.start = 0;
    return self;
}

process_state process_look(process_id id)
{
    char state = '\0';
    uint64_t start = 0;
    if (!read_stat(id.pid, &state, &start)) /* without a free descriptor nobody is dead */
        return errno == ENOENT || errno == ESRCH ? PROCESS_ENDED : PROCESS_RUNS;
    if (state == 'Z' || state == 'X')
        return PROCESS_ENDED;
    if (id.start != 0 && id.start != start)
        return PROCESS_ENDED;
    return state == 'T' || state == 't' ? PROCESS_STOPPED : PROCESS_RUNS;
}
