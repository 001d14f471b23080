/* Node 0's part of agent_channel.h: hears how the nodes' workers ended, notices who is silent, and
 * decides on the outcome. */
#ifndef MNIST_DDP_APP_LAUNCH_COORDINATOR_H
#define MNIST_DDP_APP_LAUNCH_COORDINATOR_H

#include "app/launch/agent_rendezvous.h"
#include "app/launch/group_outcome.h"

typedef struct coordinator coordinator;

/* `rdzv` must outlive it. All nodes have just been heard. */
status coordinator_create(const agent_rendezvous *rdzv, coordinator **out);
void coordinator_destroy(coordinator *c); /* accepts NULL */

/* Looks who lives and who has reported on this attempt. A node that is silent for too long is lost.
 * *trouble: whether the attempt is known to be in trouble. If a node is lost or reports some, then
 * it is set, and trouble/<attempt> too. */
status coordinator_hear(coordinator *c, store *client, int attempt, bool *trouble);

/* Once all nodes have reported or are lost, for the first time: *decided, sets outcome/<attempt>,
 * and *out to the same, for group_outcome_free(). If all start again, the store has forgotten
 * before what the workers left in it. */
status coordinator_decide(coordinator *c, store *client, bool *decided, group_outcome *out);

/* How many nodes, this one included, can be told the outcome. */
int coordinator_count_living(const coordinator *c);

#endif
