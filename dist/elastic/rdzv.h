/* One node's part in the rounds of an elastic job: a thread that keeps its lease, feeds what it
 * sees to the state machine (round.h), and does what that says. torch's name for it is
 * DynamicRendezvousHandler. Its owner polls a descriptor and looks.
 */
#ifndef MNIST_DDP_DIST_ELASTIC_RDZV_H
#define MNIST_DDP_DIST_ELASTIC_RDZV_H

#include "dist/elastic/rdzv_ops.h"
#include "dist/elastic/rdzv_queue.h"

/* Times are of torch's --rdzv-conf, with torch's defaults. */
typedef struct rdzv_options {
    const rdzv_ops *backend;
    const char *endpoints, *run_id;
    const struct etcd_access *access; /* etcd_gateway.h; borrowed; NULL */
    round_node self;                  /* id, nproc, address, port */
    int min_nodes, max_nodes;
    int64_t join_ms;       /* 600 s: how long a node waits to be in a round */
    int64_t last_call_ms;  /* 30 s: of the first round, after min_nodes have come */
    int64_t read_ms;       /* 60 s: one call, but a third of a lease at most, so that etcd's next
                              endpoint can be asked before that ends; 0: that long */
    int64_t keep_alive_ms; /* 5 s: between two renewals; */
    int keep_alive_misses; /* 3: the lease ends after so many */
} rdzv_options;

typedef struct rdzv_handle rdzv_handle;

status rdzv_open(const rdzv_options *options, rdzv_handle **out);

/* Readable: there is news, or valid_until_ns has grown. */
int rdzv_fd(const rdzv_handle *rdzv);
rdzv_news rdzv_watch(rdzv_handle *rdzv);

/* No rank of this node runs any more, or all wait: it takes part in the next round. From here on
 * the phase is RDZV_WAITS, whatever was said of the round before. */
void rdzv_leave(rdzv_handle *rdzv, const rdzv_departure *how);

/* The job has ended: nobody is to begin another round. */
void rdzv_end_job(rdzv_handle *rdzv, round_ending ending, const char *reason);

/* Gives the lease back and ends the thread: at once, or after the second at most that it takes to
 * close the job, or a call that gets no answer (read_ms or less). Accepts NULL. */
void rdzv_close(rdzv_handle *rdzv);

#endif
