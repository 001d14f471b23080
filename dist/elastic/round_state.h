/* What the nodes of an elastic job keep at the service: a state and a record of each node. Plain
 * data; round.h says what it means.
 */
#ifndef MNIST_DDP_DIST_ELASTIC_ROUND_STATE_H
#define MNIST_DDP_DIST_ELASTIC_ROUND_STATE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ROUND_ID_BYTES = 96,
    ROUND_ADDRESS_BYTES = 64,
    ROUND_REASON_BYTES = 256,
};

/* What a node says of itself, under its lease. `lost` is owned by whoever owns the node. */
typedef struct round_node {
    char id[ROUND_ID_BYTES]; /* "hostA_4711_1f3c": of one agent, never used again */
    int64_t order;           /* by the service: who came earlier has a smaller one */
    int nproc;               /* ranks that it starts: nodes may differ */
    char address[ROUND_ADDRESS_BYTES];
    int port;      /* of the store that it serves if it becomes node 0 */
    bool waits;    /* for the round after `round`; false: it runs `round` */
    int64_t round; /* that it runs, or has left; 0: it has been in none */
    int restarts;  /* after failed ranks: how many it knows of */
    bool unmet;    /* `round` never began here: `lost` are those that did not come to it, or, of
                      node 0, its last member, if not all ranks have met */
    char (*lost)[ROUND_ID_BYTES]; /* members of `round` whose connections have closed */
    int n_lost;

    /* In a view only (round_quorum_leave_out). */
    int absences;  /* how often in a row it did not come to its round */
    bool left_out; /* the next round is formed without it */
} round_node;

/* A node that did not come to the latest rounds of which it was a member. */
typedef struct round_absence {
    char id[ROUND_ID_BYTES];
    int times;
} round_absence;

/* How a round, or a job, ends. */
typedef enum round_ending {
    ROUND_BADLY, /* a round: members are lost, or have left; a job: a rank has failed */
    ROUND_WELL,  /* a round: a newcomer waits, and all members live; a job: all its work is done */
} round_ending;

/* The one value at the service. Lists are owned (round_state_free); members have no `lost`. */
typedef struct round_state {
    int64_t round; /* the latest; 0: none was yet */
    bool over;     /* all members are to leave it */
    bool closed;
    int restarts;
    round_ending ending;             /* of over, or closed, */
    char reason[ROUND_REASON_BYTES]; /* and why: "node 2 (hostC) is lost" */
    round_node *members; /* in the order of their node ranks, as they were when it was formed */
    int n;
    round_absence *absences;
    int n_absences;
} round_state;

/* What is at the service, at one revision. Owned (round_view_free). */
typedef struct round_view {
    round_state state;
    int64_t state_revision;
    bool only_state;   /* the nodes were not looked at: */
    bool own_is_there; /* this one's record was put there as it is to be */
    round_node *nodes; /* by their order */
    int n;
} round_view;

void round_node_free(round_node *node); /* frees `lost` */
void round_state_free(round_state *state);
void round_view_free(round_view *view);

/* A copy with members of its own. STATUS_NO_MEMORY. */
status round_state_copy(const round_state *from, round_state *out);

/* The node rank of `id` in the round; -1: it is no member. */
int round_rank_of(const round_state *state, const char *id);

/* NULL: the node's lease has ended, or it has taken its record back. */
const round_node *round_node_of(const round_view *view, const char *id);

/* "hostA" of "hostA_4711_1f3c" */
typedef struct round_host {
    char text[ROUND_ID_BYTES];
} round_host;
round_host round_host_of(const char *id);

#endif
