/* Which nodes of a world (round_world.h) meet, and whom they name if they do not. */
#ifndef MNIST_DDP_TESTS_SUPPORT_ROUND_MEETING_H
#define MNIST_DDP_TESTS_SUPPORT_ROUND_MEETING_H

#include "tests/support/round_world.h"

/* Not all nodes of the round come to it. */
bool round_meeting_has_unreachable(const world *w, const world_state *round);

/* Nobody of it can make a step. */
bool round_meeting_fails(const world *w, const world_state *round);

/* Whether member `rank` of a round that fails names member `other`, and not just says that it has
 * not met. Node 0 names all that have not come to it, the others node 0 if nobody listens there. If
 * all have come, but not all ranks have met, node 0 names the last one. */
bool round_meeting_names(const world *w, const world_state *round, int rank, int other);

/* So many nodes that live can train together. */
int round_meeting_most(const world *w);

#endif
