/* All parts of one rank's run, for the files that begin, continue and end it; and an elastic run
 * from round to round: what its ranks keep, and from whom they take it. */
#ifndef MNIST_DDP_APP_TRAIN_ROUNDS_H
#define MNIST_DDP_APP_TRAIN_ROUNDS_H

#include "app/train/elastic.h"
#include "app/train/position.h"
#include "app/train/result.h"
#include "app/train/trainer.h"

/* What a run has come to after its last completed step, in host memory: it outlives the round in
 * which the rank has taken that step. Loss scaling and the totals of the epoch are in it; random
 * numbers need nothing, as they come from seed, epoch and sample. */
enum { KEPT_STATE_NONE = -1 };

/* Where a run stands, and with whom it came there. */
typedef struct kept_place {
    position at;
    former_world world;
    test_found best;
    char sums[CHECKPOINT_SUMS_BYTES];
    int64_t began_ns; /* the run, by this process's clock */
} kept_place;

/* Begins as {.step = KEPT_STATE_NONE}. */
typedef struct kept_state {
    int64_t step; /* place.at.step; KEPT_STATE_NONE: there is nothing else */
    kept_place place;
    size_t count;
    float *parameters;                   /* (count), owned */
    float *states[OPTIMIZER_MAX_STATES]; /* (count) each, owned; NULL: the optimizer has fewer */
    int64_t optimizer_steps;
    loss_scaling scaling;
} kept_state;

void kept_state_free(kept_state *kept);

typedef struct training {
    rank_signals signals;
    elastic *link;   /* NULL: the job is not elastic */
    kept_state kept; /* of its latest round */
    rank_context rank;
    run_folder folder; /* rank 0's; of an elastic job all ranks know its path */
    progress progress;
    result result;
    trainer trainer;
    rendezvous_place place;                /* of the round */
    bool runs;                             /* the round's ranks have begun, or gone on */
    bool survives;                         /* the round is over, and the process goes on */
    bool is_done;                          /* the run is, and rank 0 has said what it came to */
    int64_t failed_ns, left_ns, joined_ns; /* of the latest change of rounds; 0: there was none */
    int init_code;                         /* --init has failed so; 0: it has not */
    bool output_failed;                    /* something is not on disk that was asked for */
    bool refused;                          /* rank 0 has said why the run does not start */
} training;

/* The ranks have opened a round. If any of them has the state of an earlier one, all take the
 * newest, from the lowest rank that has it; rank 0 goes on in the run's folder. *continues: whether
 * that is so; else the run begins as ever. */
status rounds_continue(training *t, bool *continues);

/* Rank 0 does it; if it fails, that one says why, and the others end with `refusal`. */
status rounds_let_first(training *t, status (*does)(training *), const char *refusal);

/* Rank 0 has opened the run's folder: all ranks learn its name, as any may be rank 0 later. */
status rounds_share_folder(training *t);

/* Whether this rank goes on in its process after the round has ended with `st`: all have paused, or
 * what it waited for failed because another rank was lost or the agent has ended the round; and
 * what the mode keeps is whole on each rank. A failure of its own ends it. */
bool rounds_survives(const training *t, status st);

/* Whether `st` is what a lost rank makes of another one's wait. */
bool rounds_end_with(status st);

/* The training is done, and rank 0 is about to say what it has come to: no newcomer is taken in
 * any more, or it would be said twice. Returns when that is so for all ranks. */
status rounds_finish(training *t);

/* Keeps the state after the last completed step; the rank is still open. */
status rounds_keep(training *t);

/* The round is closed: tells the agent, and waits for the place in the next one, which is set in
 * *place. */
status rounds_await_next(training *t, rendezvous_place *place);

#endif
