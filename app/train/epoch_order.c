#include "app/train/epoch_order.h"

#include "base/log.h"

enum { FEW = 20 }; /* samples, that may come twice in the same order by chance */

void epoch_order_look(const rank_context *rank, int64_t epoch)
{
    if (rank->place.rank == 0 && loader_repeats_order(rank->loader) && rank->opts->shuffle &&
        loader_samples(rank->loader) > FEW)
        LOG_W("epoch %lld has its images in the order of epoch %lld: the sampler was not told of "
              "the new epoch (set_epoch)",
              (long long)epoch + 1, (long long)epoch);
}
