#include "app/train/skew.h"

#include "base/memory.h"

#include <stdlib.h>

status skew_open(process_group *group, bool can, int waits, skew *out)
{
    int64_t all_can = can && process_group_is_on_one_host(group);
    skew s = {.room = waits};
    TRY(process_group_all_reduce(group, &all_can, 1, DTYPE_I64, REDUCE_MIN, NULL));
    if (all_can == 0)
        return STATUS_OK;
    TRY(memory_alloc(sizeof *s.waits * (size_t)waits, (void **)&s.waits));
    status st = memory_alloc(sizeof *s.latest * (size_t)waits, (void **)&s.latest);
    if (st != STATUS_OK) {
        free(s.waits);
        return st;
    }
    s.known = true;
    *out = s;
    return STATUS_OK;
}

void skew_close(skew *s)
{
    free(s->waits);
    free(s->latest);
    *s = (skew){0};
}

void skew_note(skew *s, moment phase, int64_t came_ns, int64_t left_ns)
{
    if (s->known && s->n < s->room)
        s->waits[s->n++] = (skew_wait){phase, came_ns, left_ns};
}

status skew_settle(skew *s, process_group *group, int64_t *ns)
{
    if (!s->known)
        return STATUS_OK;
    for (int i = 0; i < s->n; i++)
        s->latest[i] = s->waits[i].came_ns;
    TRY(process_group_all_reduce(group, s->latest, (size_t)s->n, DTYPE_I64, REDUCE_MAX, NULL));
    for (int i = 0; i < s->n; i++) {
        const skew_wait *m = &s->waits[i];
        int64_t until_ns = s->latest[i] < m->left_ns ? s->latest[i] : m->left_ns;
        ns[m->phase] -= until_ns - m->came_ns;
        ns[MOMENT_WAITING] += until_ns - m->came_ns;
    }
    s->n = 0;
    return STATUS_OK;
}
