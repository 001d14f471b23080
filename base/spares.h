/* Pieces of memory of one size that are taken and given back again and again: only the first ones
 * are allocated. One thread at a time. */
#ifndef MNIST_DDP_BASE_SPARES_H
#define MNIST_DDP_BASE_SPARES_H

#include <stddef.h>

typedef struct spares {
    struct spare *first; /* all zero: there are none yet */
} spares;

/* A piece, zeroed, of size_bytes: at least a pointer's, and always the same. NULL: no memory. */
void *spares_take(spares *s, size_t size_bytes);

/* Takes a piece back. */
void spares_give(spares *s, void *piece);

/* Frees those that have been given back. */
void spares_free(spares *s);

#endif
