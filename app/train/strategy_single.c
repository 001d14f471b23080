/* One process, the whole batch. */
#include "app/train/strategy_ops.h"

const strategy_ops strategy_single = {
    .facts = {.name = "single",
              .title = "mode single, ranks",
              .unit = "rank",
              .is_one_process = true,
              .can_be_captured = true,
              .has_peer = true,
              .advice = "take it if one device is fast enough and the network fits it: nothing is "
                        "sent, and nothing can be waited for"},
};
