/* How a group meets at a store: the ranks of a job, or the agents of its nodes. */
#ifndef MNIST_DDP_DIST_MEMBERSHIP_MEMBERSHIP_H
#define MNIST_DDP_DIST_MEMBERSHIP_MEMBERSHIP_H

#include "dist/store/store.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A group of members meets at a store: the ranks of a job, or the agents of its nodes.
 *
 * Each posts a record of its own. The last one to come compares them all, and all hear the outcome,
 * or why there is none: who differs in what, who has not come by the deadline, who has given up.
 * Whoever waits hears that at once. The first outcome stands; members that come later hear it too.
 * Keys: keys.h, under the group's prefix.
 */

/* One member's view of its group. Borrows all that it points to. */
typedef struct membership {
    store *store;
    const char *prefix;    /* all keys begin so: "", or "/" ends it; one group, one attempt */
    int member, n;         /* 0 <= member < n, or -1: it has no number yet, and cannot meet */
    const char *noun;      /* "rank", "node" */
    bool of_job;           /* the members are a job's ranks, each with its own KEYS_ALIVE */
    const char *size_name; /* "WORLD_SIZE": members may disagree on n; NULL: they cannot */
    const char *who;    /* "pid 71 on a": two processes may claim one member; NULL: they cannot */
    const char *advice; /* with `who`: where they meet, and what to do if two claim one */
} membership;

/* What a member brings to a meeting. */
typedef struct meeting {
    const char *record;
    int64_t deadline_ns;
    const char *late; /* "has not joined": of the first member that has not come by the deadline */

    /* By whoever comes last. Sets *outcome to a text, to be freed, or leaves it NULL for "". Its
     * failure is that of all members, and its words must fit all. NULL: nothing is compared. */
    status (*compare)(void *ctx, char *const records[], char **outcome);

    /* Every few seconds, and at the deadline (is_over), if some are not there. At the deadline it
     * fails with all their names. NULL: only `late` is said, at the deadline. */
    status (*missing)(void *ctx, const bool *there, bool is_over);
    void *ctx;
} meeting;

/* Posts the record and returns once the outcome is known: *outcome is the caller's to free, or NULL
 * to be not wanted. The same failure on all members: STATUS_INVALID if compare() says so, if two
 * claim this member or the sizes differ; STATUS_TIMEOUT at the deadline; STATUS_PEER if another
 * member has failed otherwise, or the store has gone. After a failure member 0, which may serve the
 * store, stays until the others have read it, 0.4 s at most. */
status membership_meet(const membership *m, const meeting *how, char **outcome);

/* The first half of it: posts the record and does not wait. Whoever comes last compares. */
status membership_arrive(const membership *m, const meeting *how);

/* The second half. */
status membership_wait(const membership *m, const meeting *how, char **outcome);

/* Sets there[0..n-1]: who has come by now. */
status membership_look(const membership *m, bool *there);

/* Whether the outcome is known by now, without a wait: *known, or its failure. */
status membership_hear(const membership *m, bool *known);

/* The outcome, by a member that decides alone. The failure that stands instead, if one does. */
status membership_settle(const membership *m, const char *outcome);

/* This member fails with `st` and this thread's message, and so do all that wait for it or will.
 * Keeps the message. Returns `st`. */
status membership_give_up(const membership *m, status st);

#ifdef __cplusplus
}
#endif
#endif
