/* What an agent has to tell the other nodes: keys for the store, in their order. Each is sent until
 * the store is known to have it, over as many connections as that takes. One thread puts, another
 * one sends. */
#ifndef MNIST_DDP_APP_LAUNCH_OUTBOX_H
#define MNIST_DDP_APP_LAUNCH_OUTBOX_H

#include "dist/membership/keys.h"
#include "dist/store/store.h"

#include <pthread.h>

typedef struct outbox_message outbox_message;

typedef struct outbox {
    pthread_mutex_t lock;
    outbox_message *first, **last;
    keys_text lasting_key;
    char *lasting; /* NULL: there is none */
} outbox;

void outbox_init(outbox *box);
void outbox_close(outbox *box); /* with what is left in it */

/* Copies the text. Without memory it is lost, and the log says so. */
void outbox_put(outbox *box, keys_text key, const char *text);

/* The same, and outbox_repeat() puts it once more, for a new connection, until another one is put
 * so. */
void outbox_put_lasting(outbox *box, keys_text key, const char *text);
void outbox_repeat(outbox *box);

/* Sends all. After a failure what the store has not confirmed stays. */
status outbox_send(outbox *box, store *client);

#endif
