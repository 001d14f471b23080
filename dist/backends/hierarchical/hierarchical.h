/* A hierarchical group: the levels it is made of, and how a collective passes through them. */
#ifndef MNIST_DDP_DIST_BACKENDS_HIERARCHICAL_HIERARCHICAL_H
#define MNIST_DDP_DIST_BACKENDS_HIERARCHICAL_HIERARCHICAL_H

#include "dist/backends/hierarchical/level.h"

#include <stdatomic.h>

enum {
    HIERARCHICAL_CHUNK_BYTES = 1 << 20,
    HIERARCHICAL_AHEAD = 2,      /* chunks under way at once */
    HIERARCHICAL_ROW_BYTES = 64, /* room for rows that are rounded up, each a rank's of a host */
};

/* Where a rank runs. */
typedef struct rank_place {
    int host; /* hosts are numbered by their lowest rank */
    int local_rank;
} rank_place;

typedef struct hierarchical {
    int rank, world_size, hosts;
    rank_place *places; /* (world_size) */
    int columns;        /* ranks of each host that talk to other hosts: the fewest that one has */
    bool even;          /* every host has that many */
    level host;         /* the ranks of this host */
    level across;       /* a column: those of one local_rank, of all hosts in their order; if
                           local_rank < columns */
    level world;        /* all ranks */
    unsigned char *scratch; /* HIERARCHICAL_AHEAD times scratch_bytes, in the host's memory */
    size_t scratch_bytes;
    atomic_bool aborted;
    struct store *store;                     /* borrowed */
    char prefix[PROCESS_GROUP_PREFIX_BYTES]; /* of the group's keys in it */
} hierarchical;

/* Whether it passes through the levels; else all ranks do it in `world`. */
bool hierarchical_has_levels(const hierarchical *h, const collective *c);

/* Does it, in the caller's thread. */
status hierarchical_run(hierarchical *h, const collective *c, int64_t deadline_ns);

#endif
