/* Which ranks a node has. */
#include "app/launch/worker_spec.h"

#include <stdio.h>

int worker_spec_ranks_of(const worker_spec *spec, int node)
{
    return spec->nprocs != NULL ? spec->nprocs[node] : spec->nproc;
}

int worker_spec_first_rank(const worker_spec *spec, int node)
{
    int first = 0;
    for (int i = 0; spec->nprocs != NULL && i < node; i++)
        first += spec->nprocs[i];
    return spec->nprocs != NULL ? first : node * spec->nproc;
}

void worker_spec_ranks(const worker_spec *spec, char out[SPEC_RANKS_BYTES])
{
    int first = worker_spec_first_rank(spec, spec->node_rank);
    if (spec->nproc == 1)
        snprintf(out, SPEC_RANKS_BYTES, "rank %d of %d", first, spec->world_size);
    else
        snprintf(out, SPEC_RANKS_BYTES, "ranks %d to %d of %d", first, first + spec->nproc - 1,
                 spec->world_size);
}
