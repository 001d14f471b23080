/* Up to four nodes of an elastic job and the service at which they meet, as bytes that can be
 * compared: every order in which things can happen is walked through (tests/dist/test_round.c).
 * Nothing here has a socket or a clock. A node looks at the service, decides by round_step, and
 * does later what that said: in between, all others may do anything.
 */
#ifndef MNIST_DDP_TESTS_SUPPORT_ROUND_WORLD_H
#define MNIST_DDP_TESTS_SUPPORT_ROUND_WORLD_H

#include "dist/elastic/round.h"

enum { WORLD_NODES = 4 };

typedef struct world_state {
    uint8_t round, over, closed, n;
    uint8_t absences[WORLD_NODES]; /* MOST_ABSENCES at most */
    uint8_t members[WORLD_NODES];
} world_state;

typedef struct world_record {
    uint8_t there, waits, round, lost; /* lost: a bit for each node */
    uint8_t unmet;
    uint8_t order;
} world_record;

typedef enum world_life { WORLD_UNBORN, WORLD_LIVES, WORLD_DEAD } world_life;

typedef struct world_node {
    uint8_t life;
    uint8_t unreachable; /* it reaches the service, and no other node reaches it, nor it them */
    uint8_t apart;       /* a bit for each node that its ranks do not reach, nor they these */
    uint8_t ranks;       /* the round that its ranks are in; 0: none */
    uint8_t valid;       /* its lease, by its own clock */
    world_record record; /* at the service, */
    world_record put;    /* and as it was put and confirmed */
    /* The machine. */
    uint8_t phase, closing;
    world_record self;
    world_state last;
    /* What it has decided to do and not done yet: a round_action_kind; ROUND_DO_WAIT: nothing. */
    uint8_t pending, current; /* current: the state is still that of its view */
    world_state write;
} world_node;

typedef struct world {
    world_state state;
    world_node nodes[WORLD_NODES];
    uint8_t late;   /* the time is over for which some are left out */
    uint8_t faults; /* that may still happen */
} world;

/* One thing that happens to one node. */
typedef enum world_event {
    WORLD_START,      /* a node comes */
    WORLD_LOOK,       /* it looks at the service after its times have passed, and decides */
    WORLD_LOOK_STATE, /* the same, at the state only */
    WORLD_ACT,        /* it does what it has decided */
    WORLD_LEAVE,      /* its ranks end, as it was told */
    WORLD_UNMET,      /* its round has not met, as one of it is unreachable, or two are apart */
    WORLD_EXPIRE,     /* it notices that its lease has ended */
    /* Faults, but for what must follow on a death. */
    WORLD_ACT_UNHEARD, /* it does so, and does not hear that it was done */
    WORLD_QUIT,        /* its ranks end by themselves */
    WORLD_QUIT_LOST,   /* the same, and it has lost the node after it */
    WORLD_QUIT_LOST_2, /* the same, the one after that */
    WORLD_LEASE_ENDS,
    WORLD_DIES,
    WORLD_STOPS, /* gives its record back and ends */
    WORLD_CLOSE, /* ends the job */
    WORLD_RETRY, /* the time is over for which some are left out; of node 0 only */
    WORLD_EVENTS,
} world_event;

extern const char *const world_event_names[WORLD_EVENTS];

/* Does it if it can happen: whether it could. *broken: the rule that was broken; NULL. */
bool world_move(const world *from, world_event event, int node, const round_rules *rules, world *to,
                const char **broken);

/* What must be true of every world; NULL, or what is not. */
const char *world_check(const world *w);

/* Goes on without faults until nothing changes: NULL, or what is wrong then. */
const char *world_settle(world *w, const round_rules *rules);

#endif
