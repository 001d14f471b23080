/* Sends and receives between the threads of one process, for local_hub.c alone: what is offered,
 * and what is wanted. All calls with the hub's lock held. */
#ifndef MNIST_DDP_DIST_BACKENDS_LOCAL_LOCAL_MESSAGES_H
#define MNIST_DDP_DIST_BACKENDS_LOCAL_LOCAL_MESSAGES_H

#include "dist/collective/collective.h"

#include <pthread.h>

typedef enum local_message_state {
    LOCAL_WAITS,
    LOCAL_MOVES, /* the receiver copies, without the lock */
    LOCAL_DONE,
    LOCAL_REFUSED, /* count or type differ */
} local_message_state;

/* A send or recv under way. */
typedef struct local_message {
    struct local_message *next; /* on its list */
    collective what;
    int rank; /* whose it is; what.root is the other one */
    local_message_state state;
    bool is_kept;         /* a send that is done for its sender: the list's own */
    unsigned char data[]; /* of such a one */
} local_message;

/* Oldest first. */
typedef struct local_messages {
    local_message *sends, *recvs;
} local_messages;

/* Copies what fits into LOCAL_KEPT_BYTES, so that its sender need not wait. */
enum { LOCAL_KEPT_BYTES = 64 << 10 };

/* Lists a send or recv. *out: to be waited for and given to local_messages_drop; NULL: it is done
 * already. */
status local_messages_add(local_messages *m, int rank, const collective *c, local_message **out);

/* Does every recv of `rank` whose send is there; the lock is free while data is copied. *moved: any
 * was. STATUS_INVALID if count or type differ. */
status local_messages_move(local_messages *m, int rank, pthread_mutex_t *lock, bool *moved);

/* Takes a message off its list and frees it. */
void local_messages_drop(local_messages *m, local_message *message);

/* Frees what nobody has received. */
void local_messages_free(local_messages *m);

#endif
