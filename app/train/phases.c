#include "app/train/phases.h"

const char *phase_name(phase which)
{
    static const char *const names[N_PHASES] = {"data",      "broadcast",  "scatter", "forward",
                                                "gather",    "backward",   "reduce",  "waiting",
                                                "optimizer", "accelerator"};
    return names[which];
}

int64_t phases_exposed_ns(const phases *p)
{
    return p->ns[PHASE_BROADCAST] + p->ns[PHASE_SCATTER] + p->ns[PHASE_GATHER] +
           p->ns[PHASE_REDUCE];
}
