/* One of the groups that a hierarchical group is made of: some of its ranks, and the backend that
 * connects them. */
#ifndef MNIST_DDP_DIST_BACKENDS_HIERARCHICAL_LEVEL_H
#define MNIST_DDP_DIST_BACKENDS_HIERARCHICAL_LEVEL_H

#include "dist/collective/process_group_ops.h"

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

/* Starts a collective among its ranks. *out_work: for level_wait,
 * NULL if there is nothing to wait for. */
status level_launch(level *l, const collective *c, void **out_work);

/* As a backend's wait; `w` may be NULL. */
status level_wait(level *l, void *w, int64_t deadline_ns);

/* After a failure in it: this thread's message gets the whole group's ranks and says which level it
 * was. Returns st. */
status level_fail(level *l, status st);

#endif
