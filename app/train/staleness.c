#include "app/train/staleness.h"

#include "base/memory.h"

#include <stdlib.h>

status staleness_open(int trainers, int64_t bound, staleness *out)
{
    size_t n = (size_t)trainers;
    staleness s = {.trainers = trainers, .bound = bound};
    TRY(memory_alloc(n * (sizeof *s.steps + sizeof *s.waits), (void **)&s.steps));
    s.waits = (bool *)(s.steps + n);
    *out = s;
    return STATUS_OK;
}

void staleness_close(staleness *s)
{
    free(s->steps);
    *s = (staleness){0};
}

void staleness_begin(staleness *s, int64_t step, int64_t meet)
{
    s->meet = meet;
    for (int t = 0; t < s->trainers; t++)
        s->steps[t] = step;
}

int64_t staleness_push(staleness *s, int trainer, int64_t of)
{
    int64_t missed = s->version - of;
    s->rows[missed < STALENESS_ROWS ? missed : STALENESS_ROWS - 1]++;
    s->most = missed > s->most ? missed : s->most;
    s->version++;
    s->steps[trainer]++;
    s->waits[trainer] = true;
    return missed;
}

static int64_t slowest(const staleness *s)
{
    int64_t least = s->steps[0];
    for (int t = 1; t < s->trainers; t++)
        least = s->steps[t] < least ? s->steps[t] : least;
    return least;
}

int staleness_next(staleness *s)
{
    int64_t least = slowest(s);
    for (int t = 0; t < s->trainers; t++) {
        bool meets = s->steps[t] >= s->meet;
        bool may = meets ? least >= s->meet : s->bound < 0 || s->steps[t] - least <= s->bound;
        if (s->waits[t] && may) {
            s->waits[t] = false;
            return t;
        }
    }
    return -1;
}

void staleness_stop(staleness *s)
{
    int64_t furthest = 0;
    for (int t = 0; t < s->trainers; t++) {
        int64_t begun = s->steps[t] + !s->waits[t];
        furthest = begun > furthest ? begun : furthest;
    }
    s->meet = furthest < s->meet ? furthest : s->meet;
}

int64_t staleness_steps(const staleness *s)
{
    int64_t sum = 0;
    for (int t = 0; t < s->trainers; t++)
        sum += s->steps[t];
    return sum;
}
