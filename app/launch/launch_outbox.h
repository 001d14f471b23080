/* What a launcher tells the others through the store: each notice is sent until the store is known
 * to have it, over as many connections as that takes. One thread puts, another sends. */
#ifndef MNIST_DDP_APP_LAUNCH_OUTBOX_H
#define MNIST_DDP_APP_LAUNCH_OUTBOX_H

#include "base/status.h"
#include "dist/store/store.h"

typedef struct launch_outbox launch_outbox;

status launch_outbox_create(launch_outbox **out);
void launch_outbox_destroy(launch_outbox *outbox); /* accepts NULL */

/* Copies key and text. STATUS_NO_MEMORY. */
status launch_outbox_put(launch_outbox *outbox, const char *key, const char *text);

/* Sends all, in the order in which they were put. On failure what the store has not confirmed stays
 * for the next time. */
status launch_outbox_send(launch_outbox *outbox, store *client);

#endif
