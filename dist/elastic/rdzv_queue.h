/* What a node's rendezvous, a thread, and its owner tell each other. The thread tells where the
 * node stands; the owner hears the latest of that. The owner asks for things, and the thread finds
 * them before its next turn. rdzv.h says what they mean.
 */
#ifndef MNIST_DDP_DIST_ELASTIC_RDZV_QUEUE_H
#define MNIST_DDP_DIST_ELASTIC_RDZV_QUEUE_H

#include "dist/elastic/round_state.h"

typedef enum rdzv_phase {
    RDZV_WAITS,  /* for a round */
    RDZV_RUNS,   /* in one */
    RDZV_LEAVES, /* the round is over: end it, then rdzv_leave() */
    RDZV_CLOSED,
    RDZV_FAILED, /* join_ms are over; or the service is out of reach for good: an answer that
                          refuses us, or no store of c10d: nobody listens for keep_alive_ms, or
                          there is no answer for as long as a lease lasts; or memory is short */
} rdzv_phase;

typedef struct rdzv_news {
    rdzv_phase phase;
    status failure;         /* of FAILED: STATUS_NO_MEMORY, or STATUS_PEER */
    round_ending ending;    /* of LEAVE, CLOSED */
    const char *reason;     /* of LEAVE, CLOSED, FAILED; "" else. Lives until the next look. */
    const round_state *now; /* of RUNS and LEAVE: the round; lives until the next look */
    int node_rank;          /* in now->members */
    int64_t valid_until_ns; /* clock_now_ns(): after it no rank of this node may make a step */
} rdzv_news;

/* What a node knows when it has left a round. */
typedef struct rdzv_departure {
    const char *const *lost; /* ids of members that are gone, by a closed connection */
    int n_lost;
    int restarts; /* the job's, this one included if a failed rank is the reason */
    bool unmet;   /* the round never began here: `lost` did not come to it */
} rdzv_departure;

typedef struct rdzv_requests {
    bool quit, close;
    round_ending ending;             /* of close, */
    char reason[ROUND_REASON_BYTES]; /* likewise */
    bool left;                       /* until rdzv_queue_heard_left() */
    rdzv_departure how;              /* its texts are owned: rdzv_requests_free */
} rdzv_requests;

void rdzv_requests_free(rdzv_requests *requests);

typedef struct rdzv_queue rdzv_queue;

/* STATUS_NO_MEMORY; STATUS_IO without a descriptor. */
status rdzv_queue_create(rdzv_queue **out);
void rdzv_queue_destroy(rdzv_queue *box); /* after the thread; accepts NULL */

/* The thread's. */

int rdzv_queue_wake_fd(const rdzv_queue *box); /* readable: there are requests */

/* All that the owner has asked for, into *known, which is zeroed before the first time. */
void rdzv_queue_take(rdzv_queue *box, rdzv_requests *known);
void rdzv_queue_heard_left(rdzv_queue *box);

/* What the owner's next look returns; it is copied, but valid_until_ns, which is apart. What is
 * said of a round that the owner has left is dropped. STATUS_NO_MEMORY: the owner hears that, as
 * RDZV_FAILED, in its place. */
status rdzv_queue_tell(rdzv_queue *box, const rdzv_news *news);

/* The lease lasts until then. */
void rdzv_queue_extend(rdzv_queue *box, int64_t valid_until_ns);

/* The owner's: rdzv.h has them, too. */

int rdzv_queue_news_fd(const rdzv_queue *box);
rdzv_news rdzv_queue_look(rdzv_queue *box);
void rdzv_queue_left(rdzv_queue *box, const rdzv_departure *how);
void rdzv_queue_close_job(rdzv_queue *box, round_ending ending, const char *reason);
void rdzv_queue_quit(rdzv_queue *box);

#endif
