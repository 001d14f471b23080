/* Between the bytes of a world (round_world.h) and what round_step takes. */
#ifndef MNIST_DDP_TESTS_SUPPORT_ROUND_PACK_H
#define MNIST_DDP_TESTS_SUPPORT_ROUND_PACK_H

#include "tests/support/round_world.h"

extern const char *const round_pack_ids[WORLD_NODES];

void round_pack_state(const round_state *state, world_state *out);

/* A node's machine. Owned by the caller: round_machine_free. */
void round_pack_fill_machine(const world_node *node, int i, const round_rules *rules,
                             round_machine *out);
void round_pack_machine(const round_machine *machine, world_node *out);

/* What node `self` sees; out->nodes, out->state.members and absences have room for all. */
void round_pack_fill_view(const world *w, bool only_state, int self, round_view *out);

#endif
