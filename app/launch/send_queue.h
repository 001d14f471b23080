/* What a launcher tells the others through the store: each notice is sent until the store is known
 * to have it, over as many connections as that takes. One thread puts, another sends. */
#ifndef MNIST_DDP_APP_LAUNCH_SEND_QUEUE_H
#define MNIST_DDP_APP_LAUNCH_SEND_QUEUE_H

#include "base/status.h"
#include "dist/store/store.h"

typedef struct send_queue send_queue;

status send_queue_create(send_queue **out);
void send_queue_destroy(send_queue *queue); /* accepts NULL */

/* Copies key and text. STATUS_NO_MEMORY. */
status send_queue_put(send_queue *queue, const char *key, const char *text);

/* Sends all, in the order in which they were put. On failure what the store has not confirmed stays
 * for the next time. */
status send_queue_send(send_queue *queue, store *client);

#endif
