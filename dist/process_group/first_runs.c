#include "dist/process_group/first_runs.h"

bool first_runs_note(first_runs *runs, const collective *c)
{
    for (int i = 0; i < runs->n; i++)
        if (runs->seen[i].kind == c->kind && runs->seen[i].type == c->type &&
            runs->seen[i].root == c->root && runs->seen[i].count == c->count)
            return false;
    if (runs->n == FIRST_RUNS_MOST)
        return false;
    runs->seen[runs->n].kind = c->kind;
    runs->seen[runs->n].type = c->type;
    runs->seen[runs->n].root = c->root;
    runs->seen[runs->n].count = c->count;
    runs->n++;
    return true;
}
