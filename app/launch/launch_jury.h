/* Node 0's part of launch_link.h: hears how the nodes' workers ended, notices who is silent, and
 * gives the verdict. */
#ifndef MNIST_DDP_APP_LAUNCH_JURY_H
#define MNIST_DDP_APP_LAUNCH_JURY_H

#include "app/launch/launch_join.h"
#include "app/launch/launch_verdict.h"

typedef struct launch_jury launch_jury;

/* `joining` must outlive it. All nodes have just been heard. */
status launch_jury_create(const launch_joining *joining, launch_jury **out);
void launch_jury_destroy(launch_jury *jury); /* accepts NULL */

/* Looks who lives and who has ended. A node that is silent for too long is lost; then, and where
 * somebody is in trouble, trouble/<generation> is set and *alarm. */
status launch_jury_hear(launch_jury *jury, store *client, int generation, bool *alarm);

/* Once all nodes have ended or are lost: sets verdict/<generation>, and *text to the same, for
 * free(); else *text is NULL. Where all start again, the store has forgotten before what the
 * workers left in it. */
status launch_jury_judge(launch_jury *jury, store *client, store_server *server, int generation,
                         char **text);

/* How many nodes, this one included, can be told the verdict. */
int launch_jury_living(const launch_jury *jury);

#endif
