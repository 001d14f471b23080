/* Whether the waiting nodes can form the next round, and what stands in their way. */
#ifndef MNIST_DDP_DIST_ELASTIC_ROUND_PROSPECT_H
#define MNIST_DDP_DIST_ELASTIC_ROUND_PROSPECT_H

#include "dist/elastic/round_state.h"

typedef struct round_rules {
    int min, max;
    int64_t last_call_ms;
} round_rules;

typedef enum round_hurdle {
    ROUND_HURDLE_NONE,     /* it can begin; if there is no survivor, after the last call */
    ROUND_HURDLE_RUNS,     /* the latest round is not over */
    ROUND_HURDLE_ALL_LOST, /* the same, but none of its nodes is left to say that it is over */
    ROUND_HURDLE_OLDER,    /* a node knows of a later round than the service does */
    ROUND_HURDLE_MEMBER,   /* `member` of the last round has not left it */
    ROUND_HURDLE_FEW,      /* fewer than `min` wait */
} round_hurdle;

typedef struct round_prospect {
    round_hurdle hurdle;
    int waiting, survivors; /* nodes; survivors of the last round among them */
    int member;             /* its node rank in the last round */
} round_prospect;

round_prospect round_prospect_of(const round_rules *rules, const round_view *view);

/* What a waiting node waits for, in words: "1 of 2 has come: hostA (8 ranks)". */
void round_prospect_text(const round_rules *rules, const round_view *view, char *out,
                         size_t size_bytes);

#endif
