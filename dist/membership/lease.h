/* Who is member m of a group: one process holds the lease on it. Keys: keys.h.
 *
 * The ranks of a job take their leases for good. An agent's lease is a node's number: the agent
 * renews it while it lives. An agent that was silent for too long loses it to the next one that
 * asks.
 */
#ifndef MNIST_DDP_DIST_MEMBERSHIP_LEASE_H
#define MNIST_DDP_DIST_MEMBERSHIP_LEASE_H

#include "dist/store/store.h"

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

#endif
