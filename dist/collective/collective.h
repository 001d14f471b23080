/* A collective: what it is, what it reads and sets in one rank's memory, and how one rank alone
 * does it. */
#ifndef MNIST_DDP_DIST_COLLECTIVE_COLLECTIVE_H
#define MNIST_DDP_DIST_COLLECTIVE_COLLECTIVE_H

#include "base/status.h"
#include "dist/collective/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum collective_kind {
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_BROADCAST,
    COLLECTIVE_BARRIER,
    COLLECTIVE_REDUCE,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_GATHER,
    COLLECTIVE_SCATTER,
    COLLECTIVE_ALL_TO_ALL,
    COLLECTIVE_SEND, /* this and the next: between two ranks alone */
    COLLECTIVE_RECV,
    COLLECTIVE_KIND_COUNT,
} collective_kind;

/*                  in                                    out
 *   all_reduce     (count)                               (count)
 *   broadcast      (count), equal to out                 (count): the root's
 *   reduce         (count)                               (count), on the root
 *   all_gather     (count)                               (world_size, count)
 *   reduce_scatter (world_size, count)                   (count)
 *   gather         (count)                               (world_size, count), on the root
 *   scatter        (world_size, count), on the root      (count)
 *   all_to_all     (world_size, count), row r to rank r  the same, row r from rank r
 *   send, recv     (count)                               (count)
 *
 * In place: in equals out if they have one shape; else the smaller one may be this rank's row of
 * the other. All ranks do so, or none. They overlap in no other way. What is not set or read on a
 * rank may be NULL there. */
typedef struct collective {
    collective_kind kind;
    reduce_op op;
    dtype type;
    const void *in;
    void *out;
    size_t count; /* elements; a barrier has none */
    int root;     /* or the peer of a send or recv */
    int tag;      /* of a send or recv: a recv takes what was sent with its tag, oldest first */
    float
        prescale; /* every element is multiplied by it on the way in (float types); 0 or 1: none */
    uint64_t seq; /* this group's running number, from 1: names the collective in errors. Sends and
                       receives have numbers of their own. */
    int64_t timeout_ms; /* longer for the first of its kind (process_group_patience_ms) */
    bool blocks; /* the caller waits for it at once: a backend need not move it beside the caller */
    const char *label; /* what it carries, as process_group_keep_label gave it; NULL: not said */
} collective;

/* Bytes that a rank sends to others and gets from them. */
typedef struct rank_traffic {
    uint64_t sent, received;
} rank_traffic;

const char *collective_kind_name(collective_kind kind); /* "all_reduce" */
bool collective_is_send_or_recv(collective_kind kind);
bool collective_has_root(collective_kind kind); /* or a peer */
bool collective_reduces(collective_kind kind);

/* STATUS_INVALID if the arguments make no sense for this rank of `world_size`. Also if its bytes
 * are more than memory can hold: the functions below need not check. */
status collective_check(const collective *c, int rank, int world_size);

/* "all_reduce #17 (bucket 1: fc1.weight, fc1.bias)", or without a label "all_reduce #17 (2 x f64)".
 */
void collective_describe(const collective *c, char *out, size_t size_bytes);

/* What it reads at c->in and sets at c->out on this rank; 0: nothing. */
size_t collective_in_bytes(const collective *c, int rank, int world_size);
size_t collective_out_bytes(const collective *c, int rank, int world_size);

/* What it moves on this rank if a ring reduces and gathers, and a root or a pair of ranks exchange
 * directly: a root sends or gets its data world_size - 1 times. */
rank_traffic collective_star_traffic(const collective *c, int rank, int world_size);

/* The same, but broadcast and reduce pass through a chain of ranks that ends at the root. */
rank_traffic collective_chain_traffic(const collective *c, int rank, int world_size);

/* Does it for a world of one rank, on host memory. */
void collective_do_alone(const collective *c);

#ifdef __cplusplus
}
#endif
#endif
