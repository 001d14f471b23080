/* Whether the waiting nodes can form the next round, and what stands in their way. */
#ifndef MNIST_DDP_DIST_ELASTIC_ROUND_QUORUM_H
#define MNIST_DDP_DIST_ELASTIC_ROUND_QUORUM_H

#include "dist/elastic/round_state.h"

typedef struct round_rules {
    int min, max;
    int64_t last_call_ms;
} round_rules;

typedef enum round_blocker {
    ROUND_BLOCKER_NONE,     /* it can begin; if there is no survivor, after the last call */
    ROUND_BLOCKER_RUNS,     /* the latest round is not over */
    ROUND_BLOCKER_ALL_LOST, /* the same, but none of its nodes is left to say that it is over */
    ROUND_BLOCKER_OLDER,    /* a node knows of a later round than the service does */
    ROUND_BLOCKER_MEMBER,   /* `member` of the last round has not left it */
    ROUND_BLOCKER_FEW,      /* fewer than `min` wait */
} round_blocker;

typedef struct round_quorum {
    round_blocker blocker;
    int waiting, survivors; /* nodes that are not left out; survivors of the last round of them */
    int member;             /* its node rank in the last round */
} round_quorum;

/* Marks in the view who is left out of the next round: who has just not come to its round, and who
 * did not come to an earlier one, for ROUND_ABSENCE_MS after that, twice as long each time. They
 * are let in one at a time, so that it is known who does not come. But not so many are left out
 * that fewer than `min` are left. since_ms: since when the state's absences are known, now_ms
 * included. Returns when the first of them is let in again, in the same time; INT64_MAX. */
enum { ROUND_ABSENCE_MS = 8000 };
int64_t round_quorum_leave_out(const round_rules *rules, const round_view *view, int64_t since_ms);

round_quorum round_quorum_of(const round_rules *rules, const round_view *view);

/* What a waiting node waits for, in words: "1 of 2 has come: hostA (8 ranks)". */
void round_quorum_text(const round_rules *rules, const round_view *view, char *out,
                       size_t size_bytes);

#endif
