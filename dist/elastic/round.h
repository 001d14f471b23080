/* The rounds of an elastic job, as a pure function of (state, event, now): no socket, no clock, no
 * thread. docs/elastic.md draws it.
 *
 * Nodes that want to train wait at a service (rdzv_ops.h), each under a lease. A round is
 * a list of nodes that train together. One value at the service, the state, says which round is the
 * latest; it is replaced by compare and set only, so there is one line of rounds. The waiting node
 * that comes first writes the next round; all others read it there.
 *
 *   a round begins   A node of the list puts into its record that it runs the round, looks again,
 *                    and begins if the round is not over by then.
 *   a round is over  A member's lease has ended, or it has left, or a newcomer waits and there is
 *                    room. The first member that sees it says so in the state, and every member
 *                    leaves.
 *   the next one     First round: all of `max` wait, or `min` have waited for last_call_ms.
 *                    Later ones: the round before is over, no node runs it any more, and `min`
 *                    wait. Survivors keep their order and have precedence over newcomers, which
 *                    fill up to `max`. If there is no survivor, as for a first round.
 *   two never live   Whoever forms the next round has seen the one before as over, and no member of
 *                    it, after that, as one that runs it: a member that puts itself into it later
 *                    sees that it is over. A member whose lease has ended has left before, by its
 *                    own clock. One that others have lost sight of, but that has a lease, is not
 *                    waited for if a member that has left names it: since that one has left, no
 *                    rank makes a step in that round.
 *   who is absent    A member that never comes to its round (others reach the service, and not it)
 *                    is left out of the next ones for a while, if enough others wait. So it costs
 *                    the others little. If all have come, but their ranks have not all met, node 0
 *                    names the latest one, as nobody knows whose fault it is; in the next round, if
 *                    they have still not met, the one before it.
 *   a closed job     never opens again.
 *   a lost state     A node that finds an older state than its own, the service having been started
 *                    anew say, ends: others may still live in a round of which it does not know.
 */
#ifndef MNIST_DDP_DIST_ELASTIC_ROUND_H
#define MNIST_DDP_DIST_ELASTIC_ROUND_H

#include "dist/elastic/round_quorum.h"

enum { ROUND_SETTLE_MS = 500 }; /* newcomers are taken in when no other has come for so long */

typedef enum round_phase {
    ROUND_WAITS,  /* for a round */
    ROUND_AGREES, /* its record says that it runs one; it has not begun */
    ROUND_RUNS,
    ROUND_LEAVES, /* has been told to leave: until ROUND_LEFT */
    ROUND_CLOSED,
} round_phase;

/* What one node remembers between events. Owned: self.lost, last.members (round_machine_free). */
typedef struct round_machine {
    round_rules rules;
    round_node self;  /* its record, as it is to be at the service */
    round_state last; /* the round of self.round */
    round_phase phase;
    bool closing; /* the job is to be closed: `ending` and `reason` say how */
    round_ending ending;
    char reason[ROUND_REASON_BYTES];
    int64_t enough_ms; /* since when enough nodes wait; -1: they do not */
    int64_t absent_ms; /* since when it knows the state's absences, and who of them tries again: */
    uint64_t absences; /* round_absences_hash */
    int64_t newest;    /* the order of the latest newcomer that was seen; 0: there is none, */
    int64_t newest_ms; /* and since when */
} round_machine;

typedef enum round_event_kind {
    ROUND_VIEW, /* what is at the service, as of now; also after each action, and when a time that
                      ROUND_WAIT has named has come */
    ROUND_LEFT, /* no rank of this node is in a round any more */
    ROUND_EXPIRED, /* this node's lease has ended, or will before it can be renewed */
    ROUND_CLOSE,   /* the job has ended */
} round_event_kind;

typedef struct round_event {
    round_event_kind kind;
    const round_view *view;  /* ROUND_VIEW */
    round_ending ending;     /* ROUND_CLOSE */
    const char *reason;      /* ROUND_EXPIRED, ROUND_CLOSE */
    int restarts;            /* ROUND_LEFT: the job's */
    const char *const *lost; /* ROUND_LEFT: ids of members whose connections have closed */
    int n_lost;
    bool unmet; /* ROUND_LEFT: the round never began here: `lost` did not come */
} round_event;

typedef enum round_action_kind {
    ROUND_WAIT,  /* for another view, or until until_ms */
    ROUND_PUT,   /* the machine's `self` into this node's record; then look again */
    ROUND_WRITE, /* `state`, if the one there is still that of the view; then look again */
    ROUND_BEGIN, /* machine.last, as its node `node_rank`; not if the own lease has ended */
    ROUND_LEAVE, /* for `reason`: its ranks are to end the round; then ROUND_LEFT */
    ROUND_END,   /* the job is closed, for `reason` */
} round_action_kind;

/* Owned: state.members (round_action_free). */
typedef struct round_action {
    round_action_kind kind;
    int64_t until_ms;                /* ROUND_WAIT; INT64_MAX: for nothing but a view */
    round_state state;               /* ROUND_WRITE */
    int node_rank;                   /* ROUND_BEGIN */
    round_ending ending;             /* ROUND_LEAVE, ROUND_END; */
    char reason[ROUND_REASON_BYTES]; /* likewise */
} round_action;

/* A node that waits, in no round yet. `self`: id, nproc, address, port. */
void round_machine_init(round_machine *machine, const round_rules *rules, const round_node *self);
void round_machine_free(round_machine *machine);

/* What this node does next. now_ms: of a clock that never goes back. STATUS_NO_MEMORY: nothing has
 * changed, and the event may be given again. */
status round_step(round_machine *machine, const round_event *event, int64_t now_ms,
                  round_action *out);

void round_action_free(round_action *action);

uint64_t round_absences_hash(const round_state *state);

#endif
