/* One process, the whole batch. */
#include "app/train/strategy_ops.h"

static status check(const options *opts, int world_size)
{
    (void)opts;
    if (world_size > 1)
        return FAIL(STATUS_INVALID,
                    "--mode=single is one process, this job has %d ranks: leave out what asks for "
                    "them (--nproc-per-node, --nnodes, --world-size; RANK and WORLD_SIZE), or give "
                    "--mode=ddp",
                    world_size);
    return STATUS_OK;
}

const strategy_ops strategy_single = {
    .facts = {.name = "single",
              .title = "mode single, ranks",
              .unit = "rank",
              .is_one_process = true,
              .can_be_captured = true,
              .has_peer = true,
              .advice = "take it if one device is fast enough and the network fits it: nothing is "
                        "sent, and nothing can be waited for"},
    .check = check,
};
