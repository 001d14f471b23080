// How ranks do a collective with messages; docs/collectives.md has the pictures.
#ifndef MNIST_DDP_DIST_BACKENDS_GLOO_ALGORITHMS_H
#define MNIST_DDP_DIST_BACKENDS_GLOO_ALGORITHMS_H

extern "C" {
#include "dist/collective/collective.h"
}

#include <gloo/context.h>

#include <cstdint>
#include <vector>

namespace mnist_ddp
{

// One rank's place in its group.
struct place {
    gloo::Context &context;
    int rank, world_size;
    std::vector<char> &scratch; // kept from one collective to the next; grows
};

// Any kind but send and recv. Blocks until this rank's part is done: then `out` is set and `in` is
// the caller's again. Sums are taken in rank order. Throws as messages do.
void perform(const place &p, const collective &c, int64_t deadline_ns);

// What perform moves on a rank.
rank_traffic perform_traffic(const collective &c, int rank, int world_size);

} // namespace mnist_ddp

#endif
