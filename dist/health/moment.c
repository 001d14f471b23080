#include "dist/health/moment.h"

#include <stddef.h>

static const moment_facts FACTS[N_MOMENTS] = {
    /* clang-format off */
    [MOMENT_LOAD]        = {"data",        "in the data loader",       MOMENT_LOAD,        false},
    [MOMENT_BROADCAST]   = {"broadcast",   "sending parameters",       MOMENT_BROADCAST,   true},
    [MOMENT_SCATTER]     = {"scatter",     "sending inputs",           MOMENT_SCATTER,     false},
    [MOMENT_FORWARD]     = {"forward",     "in the forward pass",      MOMENT_FORWARD,     false},
    [MOMENT_GATHER]      = {"gather",      "gathering logits",         MOMENT_GATHER,      false},
    [MOMENT_BACKWARD]    = {"backward",    "in the backward pass",     MOMENT_BACKWARD,    false},
    [MOMENT_REDUCE]      = {"reduce",      "summing gradients",        MOMENT_REDUCE,      true},
    [MOMENT_WAITING]     = {"waiting",     "waiting",                  MOMENT_WAITING,     false},
    [MOMENT_OPTIMIZER]   = {"optimizer",   "in the optimizer",         MOMENT_OPTIMIZER,   false},
    [MOMENT_ACCELERATOR] = {"accelerator", "on the accelerator",       MOMENT_ACCELERATOR, false},
    [MOMENT_START]       = {NULL,          "starting",                 MOMENT_LOAD,        false},
    [MOMENT_BARRIER]     = {"barrier",     "before an epoch",          MOMENT_LOAD,        false},
    [MOMENT_DDP_WAIT]    = {"ddp_wait",    "after the backward pass",  MOMENT_REDUCE,      true},
    [MOMENT_GRAPH]       = {"graph",       "replaying a step",         MOMENT_ACCELERATOR, false},
    [MOMENT_BETWEEN]     = {NULL,          "between two steps",        MOMENT_LOAD,        false},
    [MOMENT_EVALUATION]  = {"evaluation",  "in the evaluation",        MOMENT_LOAD,        false},
    [MOMENT_CHECKPOINT]  = {"checkpoint",  "writing a checkpoint",     MOMENT_LOAD,        false},
    [MOMENT_LEAVE]       = {NULL,          "leaving",                  MOMENT_LOAD,        false},
    /* clang-format on */
};

const moment_facts *moment_about(moment m)
{
    return &FACTS[m];
}
