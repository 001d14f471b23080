/* One node's part in the rounds of an elastic job: a thread that keeps the node's lease at the
 * service, feeds what it sees there to the state machine (round.h), and does what that says. It is
 * torch's DynamicRendezvousHandler. Its owner polls a descriptor and takes the news.
 */
#ifndef MNIST_DDP_DIST_ELASTIC_RDZV_H
#define MNIST_DDP_DIST_ELASTIC_RDZV_H

#include "dist/elastic/rdzv_ops.h"

typedef enum rdzv_phase {
    RDZV_WAITS,  /* for a round */
    RDZV_RUNS,   /* in one */
    RDZV_LEAVES, /* the round is over: end it, then rdzv_leave() */
    RDZV_CLOSED,
    RDZV_FAILED, /* join_ms are over; or the service is out of reach for good: an answer that
                    refuses us, or no store of c10d: nobody listens for keep_alive_ms, or there is
                    no answer for as long as a lease lasts; or memory is short */
} rdzv_phase;

typedef struct rdzv_news {
    rdzv_phase phase;
    status failure;      /* with FAILED: STATUS_NO_MEMORY, or STATUS_PEER */
    round_ending ending; /* with LEAVES, CLOSED */
    const char *reason;  /* with LEAVES, CLOSED, FAILED; "" else. Lives until the next are taken */
    const round_state *now; /* with RUNS and LEAVES: the round; lives as long */
    int node_rank;          /* in now->members */
    int64_t valid_until_ns; /* by the clock: after it no rank of this node may make a step */
} rdzv_news;

/* Where a node has the time from. */
typedef struct rdzv_clock {
    int64_t (*now_ns)(void);
    void (*wait)(int wake_fd, int64_t ms); /* less if that is readable before */
} rdzv_clock;

/* Times are of torch's --rdzv-conf, with torch's defaults. */
typedef struct rdzv_options {
    const rdzv_ops *backend; /* NULL: no thread, and only rdzv_post_news() counts, for tests */
    const rdzv_clock *clock; /* NULL: base/clock.h's */
    const char *endpoints, *run_id;   /* borrowed, as the next, until rdzv_close() */
    const struct etcd_access *access; /* etcd.h; NULL */
    round_node self;                  /* id, nproc, address, port */
    int min_nodes, max_nodes;
    int64_t join_ms;       /* 600 s: how long a node waits to be in a round */
    int64_t last_call_ms;  /* 30 s: of the first round, after min_nodes have come */
    int64_t read_ms;       /* 60 s: one call, but a third of a lease at most, so that etcd's next
                              endpoint can be asked before that ends; 0: that long */
    int64_t keep_alive_ms; /* 5 s: between two renewals of the lease */
    int keep_alive_misses; /* 3: how many keep_alive_ms a lease lasts */
} rdzv_options;

typedef struct rdzv_handle rdzv_handle;

/* STATUS_NO_MEMORY; STATUS_IO without a descriptor or a thread. */
status rdzv_open(const rdzv_options *options, rdzv_handle **out);

/* Readable: there is news, or valid_until_ns has grown. */
int rdzv_fd(const rdzv_handle *rdzv);
rdzv_news rdzv_take_news(rdzv_handle *rdzv);

/* No rank of this node runs any more, or all wait: it takes part in the next round. From here on
 * the phase is RDZV_WAITS, whatever was said of the round before. */
void rdzv_leave(rdzv_handle *rdzv, const round_departure *how);

/* The job has ended: nobody is to begin another round. */
void rdzv_end_job(rdzv_handle *rdzv, round_ending ending, const char *reason);

/* By the thread: what the owner takes next, but for valid_until_ns, which is apart. It is copied.
 * What is said of a round that the owner has left is dropped. STATUS_NO_MEMORY: the owner gets
 * that, as RDZV_FAILED, in its place. */
status rdzv_post_news(rdzv_handle *rdzv, const rdzv_news *news);

/* Gives the lease back and ends the thread: at once, or after the second at most that it takes to
 * close the job, or a call that gets no answer (read_ms or less). Accepts NULL. */
void rdzv_close(rdzv_handle *rdzv);

#endif
