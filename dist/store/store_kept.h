/* The keys that outlive the processes that have set them: those of one prefix, each with who has
 * set it last. One thread's. */
#ifndef MNIST_DDP_DIST_STORE_STORE_KEPT_H
#define MNIST_DDP_DIST_STORE_STORE_KEPT_H

#include "dist/store/store_table.h"

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

#endif
