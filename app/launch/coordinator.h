/* Node 0's part of agent_channel.h: hears how the nodes' workers ended, notices who is silent, and
 * gives the outcome. */
#ifndef MNIST_DDP_APP_LAUNCH_COORDINATOR_H
#define MNIST_DDP_APP_LAUNCH_COORDINATOR_H

#include "app/launch/group_outcome.h"
#include "app/launch/launch_join.h"

typedef struct coordinator coordinator;

/* `joining` must outlive it. All nodes have just been heard. */
status coordinator_create(const launch_joining *joining, coordinator **out);
void coordinator_destroy(coordinator *c); /* accepts NULL */

/* Looks who lives and who has ended. A node that is silent for too long is lost. Then, or if
 * somebody is in trouble, trouble/<attempt> is set and *alarm. */
status coordinator_hear(coordinator *c, store *client, int attempt, bool *alarm);

/* Once all nodes have ended or are lost: sets outcome/<attempt>, and *text to the same, for
 * free(); else *text is NULL. Where all start again, the store has forgotten before what the
 * workers left in it. */
status coordinator_decide(coordinator *c, store *client, store_server *server, int attempt,
                          char **text);

/* How many nodes, this one included, can be told the outcome. */
int coordinator_count_living(const coordinator *c);

#endif
