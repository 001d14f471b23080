/* The rounds of an elastic job, as a pure function of (state, event, now): no socket, no clock, no
 * thread. docs/internals/elastic.md draws it.
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

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the nodes keep at the service: a state and a record of each node. Plain data. */

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
    int port;      /* its store's, if it becomes node 0 */
    bool waits;    /* it waits for the round after `round`; false: it runs `round` */
    int64_t round; /* the one that it runs, or has left; 0: it has been in none */
    int restarts;  /* after failed ranks: how many it knows of */
    bool unmet;    /* `round` never began here: `lost` are those that did not come to it, or, of
                      node 0, its last member, if not all ranks have met */
    char (*lost)[ROUND_ID_BYTES]; /* members of `round` whose connections have closed */
    int n_lost;

    /* In a view only, for round.c. */
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
    round_ending ending;             /* with over or closed: how it ends */
    char reason[ROUND_REASON_BYTES]; /* why it ends: "node 2 (hostC) is lost" */
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

/* "hostA" of "hostA_4711_1f3c" */
typedef struct round_host {
    char text[ROUND_ID_BYTES];
} round_host;
round_host round_host_of(const char *id);

/* Whether the waiting nodes can form the next round, and what stands in their way. */

typedef struct round_rules {
    int min, max;
    int64_t last_call_ms;
} round_rules;

/* For so long a node is left out of the next rounds that has not come to one; twice as long each
 * time. */
enum { ROUND_ABSENCE_MS = 8000 };

/* What a waiting node waits for, in words: "1 of 2 has come: hostA (8 ranks)". */
void round_quorum_text(const round_rules *rules, const round_view *view, char *out,
                       size_t size_bytes);

/* The machine. */

enum { ROUND_SETTLE_MS = 500 }; /* newcomers are taken in when no other has come for so long */

typedef enum round_phase {
    ROUND_WAITS,  /* for a round */
    ROUND_AGREES, /* its record says that it runs one; it has not begun */
    ROUND_RUNS,
    ROUND_LEAVES, /* is to leave: until ROUND_EVENT_LEFT */
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
    int64_t absent_ms; /* since when it knows what is in `absences` */
    uint64_t absences; /* round_absences_hash: the state's, and who of them tries again */
    int64_t newest;    /* the order of the latest newcomer that was seen; 0: there is none */
    int64_t newest_ms; /* since when that is the latest */
} round_machine;

/* What a node knows when it has left a round. */
typedef struct round_departure {
    const char *const *lost; /* ids of members that are gone, by a closed connection */
    int n_lost;
    int restarts; /* the job's, this one included if a failed rank is the reason */
    bool unmet;   /* the round never began here: `lost` did not come to it */
} round_departure;

typedef enum round_event_kind {
    ROUND_EVENT_VIEW,    /* what is at the service, as of now; also after each action, and when a
                            time that ROUND_DO_WAIT has named has come */
    ROUND_EVENT_LEFT,    /* no rank of this node is in a round any more */
    ROUND_EVENT_EXPIRED, /* this node's lease has ended, or will before it can be renewed */
    ROUND_EVENT_CLOSE,   /* the job has ended */
} round_event_kind;

typedef struct round_event {
    round_event_kind kind;
    const round_view *view; /* ROUND_EVENT_VIEW */
    round_ending ending;    /* ROUND_EVENT_CLOSE */
    const char *reason;     /* ROUND_EVENT_EXPIRED, ROUND_EVENT_CLOSE */
    round_departure left;   /* ROUND_EVENT_LEFT */
} round_event;

typedef enum round_action_kind {
    ROUND_DO_WAIT,  /* for another view, or until until_ms */
    ROUND_DO_PUT,   /* the machine's `self` into this node's record; then look again */
    ROUND_DO_WRITE, /* `state`, if the one there is still that of the view; then look again */
    ROUND_DO_BEGIN, /* machine.last, as its node `node_rank`; not if the own lease has ended */
    ROUND_DO_LEAVE, /* for `reason`: its ranks are to end the round; then ROUND_EVENT_LEFT */
    ROUND_DO_END,   /* the job is closed, for `reason` */
} round_action_kind;

/* Owned: state.members (round_action_free). */
typedef struct round_action {
    round_action_kind kind;
    int64_t until_ms;                /* ROUND_DO_WAIT; INT64_MAX: for nothing but a view */
    round_state state;               /* ROUND_DO_WRITE */
    int node_rank;                   /* ROUND_DO_BEGIN */
    round_ending ending;             /* ROUND_DO_LEAVE, ROUND_DO_END; */
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
