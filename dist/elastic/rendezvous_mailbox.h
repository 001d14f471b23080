/* What a node's rendezvous, a thread, and its owner tell each other. The thread tells where the
 * node stands; the owner hears the latest of that. The owner asks for things, and the thread finds
 * them before its next turn. dynamic_rendezvous.h says what they mean.
 */
#ifndef MNIST_DDP_DIST_ELASTIC_RENDEZVOUS_MAILBOX_H
#define MNIST_DDP_DIST_ELASTIC_RENDEZVOUS_MAILBOX_H

#include "dist/elastic/round_state.h"

typedef enum rendezvous_phase {
    RENDEZVOUS_WAITS, /* for a round */
    RENDEZVOUS_RUNS,  /* in one */
    RENDEZVOUS_LEAVE, /* the round is over: end it, then dynamic_rendezvous_left() */
    RENDEZVOUS_CLOSED,
    RENDEZVOUS_FAILED, /* join_ms are over; or the service is out of reach for good: an answer that
                          refuses us, or no store of c10d: nobody listens for keep_alive_ms, or
                          there is no answer for as long as a lease lasts; or memory is short */
} rendezvous_phase;

typedef struct rendezvous_news {
    rendezvous_phase phase;
    status failure;         /* of FAILED: STATUS_NO_MEMORY, or STATUS_PEER */
    round_ending ending;    /* of LEAVE, CLOSED */
    const char *reason;     /* of LEAVE, CLOSED, FAILED; "" else. Lives until the next look. */
    const round_state *now; /* of RUNS and LEAVE: the round; lives until the next look */
    int node_rank;          /* in now->members */
    int64_t valid_until_ns; /* clock_now_ns(): after it no rank of this node may make a step */
} rendezvous_news;

/* What a node knows when it has left a round. */
typedef struct round_departure {
    const char *const *lost; /* ids of members that are gone, by a closed connection */
    int n_lost;
    int restarts; /* the job's, this one included if a failed rank is the reason */
    bool unmet;   /* the round never began here: `lost` did not come to it */
} round_departure;

typedef struct rendezvous_requests {
    bool quit, close;
    round_ending ending;             /* of close, */
    char reason[ROUND_REASON_BYTES]; /* likewise */
    bool left;                       /* until rendezvous_mailbox_heard_left() */
    round_departure how;             /* its texts are owned: rendezvous_requests_free */
} rendezvous_requests;

void rendezvous_requests_free(rendezvous_requests *requests);

typedef struct rendezvous_mailbox rendezvous_mailbox;

/* STATUS_NO_MEMORY; STATUS_IO without a descriptor. */
status rendezvous_mailbox_create(rendezvous_mailbox **out);
void rendezvous_mailbox_destroy(rendezvous_mailbox *box); /* after the thread; accepts NULL */

/* The thread's. */

int rendezvous_mailbox_wake_fd(const rendezvous_mailbox *box); /* readable: there are requests */

/* All that the owner has asked for, into *known, which is zeroed before the first time. */
void rendezvous_mailbox_take(rendezvous_mailbox *box, rendezvous_requests *known);
void rendezvous_mailbox_heard_left(rendezvous_mailbox *box);

/* What the owner's next look returns; it is copied, but valid_until_ns, which is apart. What is
 * said of a round that the owner has left is dropped. STATUS_NO_MEMORY: the owner hears that, as
 * RENDEZVOUS_FAILED, in its place. */
status rendezvous_mailbox_tell(rendezvous_mailbox *box, const rendezvous_news *news);

/* The lease lasts until then. */
void rendezvous_mailbox_extend(rendezvous_mailbox *box, int64_t valid_until_ns);

/* The owner's: dynamic_rendezvous.h has them, too. */

int rendezvous_mailbox_news_fd(const rendezvous_mailbox *box);
rendezvous_news rendezvous_mailbox_look(rendezvous_mailbox *box);
void rendezvous_mailbox_left(rendezvous_mailbox *box, const round_departure *how);
void rendezvous_mailbox_close_job(rendezvous_mailbox *box, round_ending ending, const char *reason);
void rendezvous_mailbox_quit(rendezvous_mailbox *box);

#endif
