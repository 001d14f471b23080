/* A hierarchical group: the levels it is made of, and how a collective passes through them. */
#ifndef MNIST_DDP_DIST_BACKENDS_HIERARCHICAL_HIERARCHICAL_H
#define MNIST_DDP_DIST_BACKENDS_HIERARCHICAL_HIERARCHICAL_H

#include "dist/collective/process_group_ops.h"

#include <stdatomic.h>

/* One of the groups that a hierarchical group is made of: some of its ranks, and the backend that
 * connects them. */
typedef struct level {
    const process_group_ops *ops;
    const char *name; /* in messages, "between hosts" */
    char key[16];     /* of its keys in the store, after the whole group's prefix: "host/0/" */
    bool one_host;
    bool numbers; /* its collectives get numbers of their own: gloo tells them apart by those */
    size_t shared_bytes;
    int *ranks;  /* (n): of the whole group; owned */
    int n, rank; /* rank: this rank's number in it; -1: it is not in it */

    void *self;   /* NULL: nobody to talk to */
    uint64_t seq; /* of the latest collective, if the level numbers them */
    bool failed;
} level;

/* Connects the ranks; the fields above `self` are set. Nothing to do if this rank is not in it, or
 * is alone in it and needs no memory of it. Fails as the backend's create, with the whole group's
 * ranks in the message. */
status level_create(level *l, const group_setup *whole);

/* Instead, after a failure elsewhere: the other ranks of it hear this thread's message. */
void level_decline(const level *l, const group_setup *whole);

/* abandons: something has failed, so its ranks part without a goodbye. Accepts all zero. */
void level_close(level *l, bool abandons);

/* As a backend's wait; `w` may be NULL. */
status level_wait(level *l, void *w, int64_t deadline_ns);

/* After a failure in it: this thread's message gets the whole group's ranks and says which level it
 * was. Returns st. */
status level_fail(level *l, status st);

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
