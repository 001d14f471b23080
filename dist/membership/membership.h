/* Who is member m of a group, and how a group meets at a store: the ranks of a job, or the agents
 * of its nodes. */
#ifndef MNIST_DDP_DIST_MEMBERSHIP_MEMBERSHIP_H
#define MNIST_DDP_DIST_MEMBERSHIP_MEMBERSHIP_H

#include "dist/store/store.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Who is member m of a group: one process holds the lease on it. Keys: keys.h.
 *
 * The ranks of a job take their leases for good. An agent's lease is a node's number: the agent
 * renews it while it lives. An agent that was silent for too long loses it to the next one that
 * asks.
 */

enum {
    LEASE_WHO_BYTES = 320,
    LEASE_BYTES = LEASE_WHO_BYTES + 60,
    LEASE_RENEW_MS = 50,   /* renewed at least so often, */
    LEASE_SILENT_MS = 3000 /* and lost after so long without it */
};

typedef struct lease {
    int member;               /* -1: none */
    const char *prefix;       /* of the group's keys; borrowed, as is */
    const char *noun;         /* "node": what a member is */
    char holder[LEASE_BYTES]; /* who it is, and a token that tells it from its predecessor */
    int64_t heartbeats;
} lease;

/* Of `who` ("pid 71 on a"), on no member yet. */
void lease_init(lease *l, const char *prefix, const char *noun, const char *who);

/* Holds `member` from now on, if nobody does; else who[] is who does. Does not wait. */
status lease_take(lease *l, store *s, int member, bool *taken, char who[LEASE_WHO_BYTES]);

typedef struct lease_wish {
    int member;
    status (*over)(void *ctx, bool *is_over); /* whether it is too late; or why to give up */
    void *ctx;
} lease_wish;

/* The same, but if its holder is silent for LEASE_SILENT_MS it is taken, too; and renewed for the
 * first time. *taken: false if the holder lives, or it is over. */
status lease_take_over(lease *l, store *s, const lease_wish *wish, bool *taken);

/* A sign of life. STATUS_INVALID, with who it is, if another process holds the member now. */
status lease_renew(lease *l, store *s);

/* The member is free again, if this process still holds it. */
void lease_release(const lease *l, store *s);

/* Who holds a member, as it has said; "" for nobody. */
status lease_holder(store *s, const char *prefix, int member, char who[LEASE_WHO_BYTES]);

/* A member's sign of life, for one that looks repeatedly; all zero before the first look.
 */
typedef struct last_heartbeat {
    char value[32]; /* as far as it fits */
    int64_t changed_ns;
} last_heartbeat;

/* Looks once; *changed: it is another one than at the last look. */
status lease_look(store *s, const char *prefix, int member, last_heartbeat *seen, bool *changed);

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
    const char *prefix;    /* of all keys, "" or with a "/" at its end; one group, one attempt */
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
