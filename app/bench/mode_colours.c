#include "app/bench/mode_colours.h"

const char *const mode_colours[STRATEGY_COUNT] = {[STRATEGY_SINGLE] = "#555555",
                                                  [STRATEGY_DP] = "#d95f02",
                                                  [STRATEGY_DDP] = "#1b6ca8",
                                                  [STRATEGY_PS] = "#7a4fa3"};
