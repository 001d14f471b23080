/* An elastic run from round to round: what its ranks keep, and from whom they take it. */
#ifndef MNIST_DDP_APP_TRAIN_ROUNDS_H
#define MNIST_DDP_APP_TRAIN_ROUNDS_H

#include "app/train/training.h"

/* The ranks have opened a round. If any of them has the state of an earlier one, all take the
 * newest, from the lowest rank that has it; rank 0 goes on in the run's folder. *continues: whether
 * that is so; else the run begins as ever. */
status rounds_continue(training *t, bool *continues);

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
