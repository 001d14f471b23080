#include "app/launch/launch_hang.h"

#include "base/text_stream.h"

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

/* The collective that the furthest rank has entered. */
static const rank_sight *furthest(const launch_gang *gang)
{
    const rank_sight *first = NULL;
    for (int i = 0; i < gang->n; i++) {
        const rank_sight *s = &gang->sights[i];
        if (s->pid != 0 && (first == NULL || s->entered > first->entered))
            first = s;
    }
    return first;
}

/* The collective that others wait in and this rank has not entered; else the furthest one. */
static const char *missed(const launch_gang *gang, const rank_sight *late, const rank_sight *first)
{
    const rank_sight *waiting = NULL;
    for (int i = 0; i < gang->n; i++) {
        const rank_sight *s = &gang->sights[i];
        if (s->pid != 0 && s->waits > late->entered &&
            (waiting == NULL || s->waits < waiting->waits))
            waiting = s;
    }
    return waiting != NULL ? waiting->waits_text : first->entered_text;
}

static void describe_rank(FILE *out, const launch_gang *gang, const rank_sight *s,
                          const rank_sight *first)
{
    const char *stopped = s->state == RANK_STOPPED ? " (its process is stopped)" : "";
    if (s->entered < first->entered)
        fprintf(out, "  rank %d%s never entered %s; it was last %s\n", s->rank, stopped,
                missed(gang, s, first), s->doing);
    else if (s->state == RANK_STOPPED)
        fprintf(out, "  rank %d's process is stopped; it was last %s\n", s->rank, s->doing);
    else if (s->state == RANK_WORKS)
        fprintf(out, "  rank %d waited for nobody; it was %s\n", s->rank, s->doing);
}

char *launch_hang_describe(const launch_gang *gang)
{
    char *text = NULL;
    text_stream lines;
    const rank_sight *first = gang->sights != NULL ? furthest(gang) : NULL;
    if (first == NULL || text_stream_open(&lines) != STATUS_OK)
        return NULL;
    for (int i = 0; i < gang->n; i++)
        if (gang->sights[i].pid != 0)
            describe_rank(lines.file, gang, &gang->sights[i], first);
    (void)text_stream_close(&lines, &text, NULL);
    return text;
}

const char *launch_hang_place(const launch_gang *gang, int index)
{
    return gang->sights != NULL && gang->sights[index].pid != 0 ? gang->sights[index].doing : "";
}
