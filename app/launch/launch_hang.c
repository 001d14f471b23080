#include "app/launch/launch_hang.h"

#include "dist/health/hang_report.h"

#include <stdlib.h>

rank_snapshot *launch_hang_look(const worker_group *group)
{
    const worker_logs *logs = &group->start.spec->logs;
    char folder[FILE_PATH_BYTES];
    int found = 0;
    worker_logs_dumps(logs, group->start.attempt, folder);
    if (folder[0] == '\0')
        return NULL;
    rank_snapshot *sights = calloc((size_t)group->n, sizeof *sights);
    if (sights == NULL)
        return NULL;
    for (int i = 0; i < group->n; i++) {
        rank_snapshot sight;
        if (rank_status_read(folder, group->workers[i].rank, &sight) != STATUS_OK)
            continue;
        sights[i] = sight;
        found++;
    }
    if (found > 0)
        return sights;
    free(sights); /* a program that keeps no pages */
    return NULL;
}

char *launch_hang_describe(const worker_group *group)
{
    return group->sights != NULL ? hang_report_lines(group->sights, group->n) : NULL;
}

const char *launch_hang_place(const worker_group *group, int index)
{
    return group->sights != NULL && group->sights[index].pid != 0 ? group->sights[index].doing : "";
}
