/* What the backends that share memory (shm, local) must do with rows and messages, as functions for
 * run_ranks (tests/support/ranks.h). All data is checked byte by byte. */
#ifndef MNIST_DDP_TESTS_SUPPORT_EXCHANGES_H
#define MNIST_DDP_TESTS_SUPPORT_EXCHANGES_H

#include "tests/support/collectives.h"

enum { EXCHANGES_SHARED_BYTES = 32 << 20 };

/* arg: memory_kind. broadcast, all_gather, gather, scatter and all_to_all, all roots, counts 0 to
 * more than a slot, in place if the memory kind is. */
status exchanges_rows(process_group *group, int rank, int world_size, void *arg);

/* Every rank sends to every other one with three tags, small and large, and receives them in
 * another order; waits come in the order of launch, other on each rank. arg is not used. */
status exchanges_any_order(process_group *group, int rank, int world_size, void *arg);

/* Even ranks send three messages to the next rank, which receives the second by its tag before the
 * others. arg is not used. */
status exchanges_by_tag(process_group *group, int rank, int world_size, void *arg);

/* All ranks send to the next one before they receive. arg: size_t, the bytes. */
status exchanges_send_first(process_group *group, int rank, int world_size, void *arg);

/* Messages that are under way while collectives are waited for. arg is not used. */
status exchanges_beside_collectives(process_group *group, int rank, int world_size, void *arg);

/* Sub-groups of the even and of the odd ranks, and one of all without the last, each with
 * collectives and messages of its own. arg is not used. */
status exchanges_in_sub_groups(process_group *group, int rank, int world_size, void *arg);

#endif
