/* After a collective has failed: which rank the others waited for, and where it was last.
 *
 * A rank that fails says where it stands under the store's key "seen/<rank>", and says it also of
 * the ranks of its host that cannot (their pages, dist/rank_page.h).
 */
#ifndef MNIST_DDP_DIST_LAST_SEEN_H
#define MNIST_DDP_DIST_LAST_SEEN_H

#include "dist/rank_page.h"
#include "dist/store/store.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct last_seen_options {
    struct store *store; /* NULL: none, or out of reach */
    const char *folder;  /* of the pages of this host's ranks; NULL */
    const rank_page *page;
    int rank, world_size, generation;
    int64_t wait_ms; /* for ranks of other hosts to say where they stand */
    bool timed_out;  /* false: the collective failed before, and who is only late is no news */
} last_seen_options;

enum { LAST_SEEN_BYTES = 1024 };

/* Publishes what is known here, then writes into `out` (LAST_SEEN_BYTES) what sets the other ranks
 * apart from this one, as "rank 2 never entered all_reduce #17 (bucket 1: fc1.weight, fc1.bias); it
 * was last in the data loader, step 12 in epoch 1, 3.2 s ago"; "" where nothing is known. Blocks
 * wait_ms at most, and some seconds more where the store does not answer. */
void last_seen_explain(const last_seen_options *options, char *out);

#endif
