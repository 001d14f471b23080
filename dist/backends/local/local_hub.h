/* Where the threads of one process meet for their collectives: who has come to which, and with what
 * data. One lock and one condition serve all; data is moved outside the lock. */
#ifndef MNIST_DDP_DIST_BACKENDS_LOCAL_LOCAL_HUB_H
#define MNIST_DDP_DIST_BACKENDS_LOCAL_LOCAL_HUB_H

#include "dist/collective/process_group_ops.h"

typedef struct local_hub local_hub;

/* For `world_size` threads, each of which creates its process group with this hub. */
status local_hub_create(int world_size, local_hub **out);

/* Accepts NULL. All groups on it must be gone. */
void local_hub_destroy(local_hub *hub);

int local_hub_world_size(const local_hub *hub);

/* The hub of sub-group `number` of this one's group, for `world_size` of its threads: made by the
 * first that asks, and gone with this one. */
status local_hub_sub(local_hub *hub, int number, int world_size, local_hub **out);

/* What follows is the backend's. All waits end by the deadline: STATUS_TIMEOUT with the rank that
 * is missing; at once with STATUS_PEER if it has closed its group, or one of its collectives has
 * failed. After a failure too, nobody touches this rank's data: that is waited for, for 10 s at
 * most. */

/* Comes to this rank's next collective with `c` and waits until all have come to theirs: (*all)[r]
 * is rank r's, until local_hub_end. */
status local_hub_begin(local_hub *hub, int rank, const collective *c, int64_t deadline_ns,
                       const collective *const **all);

/* This rank touches nobody's data any more; returns when nobody touches its own. */
status local_hub_end(local_hub *hub, int rank, int64_t deadline_ns);

/* Instead: the ranks came with different things, and none of them touches any data. */
void local_hub_refuse(local_hub *hub, int rank);

/* Starts a send or recv, and waits for one: waiting moves all messages of this rank on, as the
 * waits above do. A send that fits LOCAL_KEPT_BYTES is done at once: *out is NULL. Else it is done
 * when the receiver, in a wait of its own, has copied the data. STATUS_INVALID on both sides that
 * still wait if count or type differ. local_hub_finish consumes the message, which may be NULL. */
struct local_message;
status local_hub_start(local_hub *hub, int rank, const collective *c, struct local_message **out);
status local_hub_finish(local_hub *hub, struct local_message *message, int64_t deadline_ns);

/* Forgets a message that nobody will wait for. */
void local_hub_drop(local_hub *hub, struct local_message *message);

/* This rank closes its group. */
void local_hub_leave(local_hub *hub, int rank);

#endif
