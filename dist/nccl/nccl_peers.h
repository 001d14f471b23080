/* Whether a collective waits in vain, because a rank that it needs has ended or closed its group.
 *
 * A rank that is through with a collective may go while others still take in what it has sent: it
 * says in the store how far it has come, and its going counts only where it has not come so far.
 * One that was killed says nothing.
 */
#ifndef MNIST_DDP_DIST_NCCL_PEERS_H
#define MNIST_DDP_DIST_NCCL_PEERS_H

#include "dist/nccl/nccl_news.h"

typedef struct nccl_peers nccl_peers;

/* What this rank waits for. */
typedef struct nccl_awaited {
    int only;         /* the one peer that it needs; -1: all */
    uint64_t number;  /* of the collective */
    int64_t since_ns; /* when it began, or when the one before had ended */
} nccl_awaited;

/* Borrows `news`. */
status nccl_peers_create(const nccl_news *news, nccl_peers **out);
void nccl_peers_destroy(nccl_peers *peers); /* accepts NULL */

/* Notes who has ended by now, in a few microseconds. One thread's alone, as is the next. */
void nccl_peers_look(nccl_peers *peers, int64_t now_ns);

/* STATUS_OK, or the failure of a rank that is needed and gone for a little while: STATUS_PEER, or
 * what it says itself why it left. Asks the store only where somebody is gone, or where the
 * collective has taken a second, and then every second. */
status nccl_peers_check(nccl_peers *peers, const nccl_awaited *what, int64_t now_ns);

/* NCCL blames a peer, and its words are this thread's message: puts in front whose process has
 * ended, where that can be seen. */
void nccl_peers_blame(const nccl_peers *peers);

#endif
