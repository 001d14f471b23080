#include "app/train/staleness.h"

#include "base/memory.h"

#include <stdbool.h>
#include <stdlib.h>

status staleness_open(int trainers, int64_t bound, staleness *out)
{
    *out = (staleness){.trainers = trainers, .bound = bound};
    return memory_alloc((size_t)trainers * sizeof *out->each, (void **)&out->each);
}

void staleness_close(staleness *s)
{
    free(s->each);
    *s = (staleness){0};
}

void staleness_begin(staleness *s, int64_t step, int64_t meet)
{
    s->meet = meet;
    s->made = step * s->trainers;
    for (int t = 0; t < s->trainers; t++)
        s->each[t].steps = step;
}

int64_t staleness_push(staleness *s, int trainer, int call)
{
    int64_t missed = s->version - s->each[trainer].has;
    s->rows[missed < STALENESS_ROWS ? missed : STALENESS_ROWS - 1]++;
    s->most = missed > s->most ? missed : s->most;
    s->version++;
    s->made++;
    s->each[trainer].steps++;
    s->each[trainer].call = call;
    return missed;
}

int staleness_next(staleness *s, int *call)
{
    int64_t slowest = INT64_MAX;
    for (int t = 0; t < s->trainers; t++)
        slowest = s->each[t].steps < slowest ? s->each[t].steps : slowest;
    for (int t = 0; t < s->trainers; t++) {
        int64_t steps = s->each[t].steps;
        bool may =
            steps >= s->meet ? slowest >= s->meet : s->bound < 0 || steps - slowest <= s->bound;
        if (s->each[t].call != 0 && may) {
            *call = s->each[t].call;
            s->each[t].call = 0;
            s->each[t].has = s->version;
            return t;
        }
    }
    return -1;
}

void staleness_stop(staleness *s)
{
    int64_t furthest = 0;
    for (int t = 0; t < s->trainers; t++) {
        int64_t begun = s->each[t].steps + (s->each[t].call == 0);
        furthest = begun > furthest ? begun : furthest;
    }
    s->meet = furthest < s->meet ? furthest : s->meet;
}
