/* Commands of other threads to the store's thread: each waits until its command is carried out. */
#ifndef MNIST_DDP_DIST_STORE_STORE_COMMANDS_H
#define MNIST_DDP_DIST_STORE_STORE_COMMANDS_H

#include "base/status.h"
#include "dist/store/store_table.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* The keys that outlive the processes that have set them: those of one prefix, each with who has
 * set it last. One thread's. */
typedef struct store_kept {
    char *prefix;         /* with the first "/"; NULL: none is kept */
    store_table *authors; /* by key: an address as text */
} store_kept;

status store_kept_init(store_kept *kept);
void store_kept_close(store_kept *kept); /* accepts one that is all zero */

/* `prefix` is without the first "/"; "": no key is kept from now on. */
status store_kept_choose(store_kept *kept, const char *prefix);

bool store_kept_has(const store_kept *kept, store_bytes key);

/* A key that is kept was set by the other end of a socket. STATUS_NO_MEMORY. */
status store_kept_note(store_kept *kept, store_bytes key, int fd);

/* Who has set it last, "" if that is not known. The key is without the first "/"; `out` has
 * SOCKET_ADDRESS_BYTES. */
void store_kept_author(const store_kept *kept, const char *key, char *out);

typedef enum store_task { STORE_KEEP, STORE_FORGET, STORE_AUTHOR, STORE_STOP } store_task;

/* In the memory of the thread that waits for it. */
typedef struct store_command {
    struct store_command *next;
    store_task task;
    const char *text; /* the prefix to keep; the key whose author is asked for */
    char *author;     /* SOCKET_ADDRESS_BYTES, set */
    status result;
    bool done;
} store_command;

typedef struct store_commands {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    store_command *first; /* in the order of their arrival */
    int callers;          /* threads inside store_commands_run() */
    bool stopped;         /* STORE_STOP was carried out, and nothing is any more */
    atomic_bool waiting;
    int wake_fd; /* readable while commands wait */
} store_commands;

status store_commands_init(store_commands *commands); /* STATUS_IO */
void store_commands_close(
    store_commands *commands); /* waits until no thread is inside; after a stop */

/* Returns once the command is carried out, or another one has stopped the thread before. */
void store_commands_run(store_commands *commands, store_command *command);

/* Has a command come? Then the store's thread ends its turn early. Costs nothing. */
static inline bool store_commands_pending(store_commands *commands)
{
    return atomic_load_explicit(&commands->waiting, memory_order_relaxed);
}

/* By the store's thread: carries out all that have come. false: it is to end. */
typedef void (*store_command_fn)(void *ctx, store_command *command);
bool store_commands_take(store_commands *commands, store_command_fn carry_out, void *ctx);

#endif
