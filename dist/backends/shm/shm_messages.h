/* Sends and receives between two ranks, through the channel from one to the other. The algorithm is
 * told in shm_messages.c. */
#ifndef MNIST_DDP_DIST_BACKENDS_SHM_SHM_MESSAGES_H
#define MNIST_DDP_DIST_BACKENDS_SHM_SHM_MESSAGES_H

#include "dist/backends/shm/shm_sync.h"
#include "dist/collective/collective.h"

#include <pthread.h>
#include <stdatomic.h>

/* A send or recv under way. */
typedef struct shm_message {
    struct shm_message *next; /* with the same peer, in the order of launch */
    const collective *what;
    size_t moved; /* bytes in the channel, of a send */
    _Atomic bool is_done;
} shm_message;

struct shm_sends;
struct shm_receives;

typedef struct shm_messages {
    shm_sync *sync; /* borrowed; its `idle` is to be shm_messages_move */
    int world_size;
    pthread_mutex_t lock;      /* of all below: launches may come from another thread than waits */
    struct shm_sends *to;      /* (world_size) */
    struct shm_receives *from; /* (world_size) */
    int under_way;
} shm_messages;

status shm_messages_create(shm_sync *sync, int world_size, shm_messages *out);
void shm_messages_free(shm_messages *m); /* accepts all zero */

/* Starts a send or recv. *message and *what are borrowed until it has been waited for, or to
 * shm_messages_free. A send goes into the channel at once, as far as there is room. */
status shm_messages_launch(shm_messages *m, const collective *what, shm_message *message);

/* Returns once it is done: what is sent is in the channel, what is received is in place. Moves all
 * messages of this rank on. Failures of shm_sync_await_done; STATUS_INVALID if the other side of a
 * message that this rank receives has another count or type. */
status shm_messages_wait(shm_messages *m, const shm_message *message, int64_t deadline_ns);

/* Moves all messages of this rank on; ctx: the shm_messages. *more: some are not done. */
status shm_messages_move(void *ctx, bool *more);

#endif
