#include "app/launch/launch_hang.h"

#include "dist/health/hang_report.h"

#include <stdlib.h>

rank_sight *launch_hang_look(const launch_gang *gang)
{
    const launch_logs *logs = &gang->start.settings->logs;
    char folder[FILE_PATH_BYTES];
    int found = 0;
    launch_logs_dumps(logs, gang->start.generation, folder);
    if (folder[0] == '\0')
        return NULL;
    rank_sight *sights = calloc((size_t)gang->n, sizeof *sights);
    if (sights == NULL)
        return NULL;
    for (int i = 0; i < gang->n; i++) {
        rank_sight sight;
        if (rank_page_read(folder, gang->workers[i].rank, &sight) != STATUS_OK)
            continue;
        sights[i] = sight;
        found++;
    }
    if (found > 0)
        return sights;
    free(sights); /* a program that keeps no pages */
    return NULL;
}

char *launch_hang_describe(const launch_gang *gang)
{
    return gang->sights != NULL ? hang_report_lines(gang->sights, gang->n) : NULL;
}

const char *launch_hang_place(const launch_gang *gang, int index)
{
    return gang->sights != NULL && gang->sights[index].pid != 0 ? gang->sights[index].doing : "";
}
