/* train --explain: what is about to happen, in lines of the log. */
#ifndef MNIST_DDP_APP_TRAIN_EXPLANATION_H
#define MNIST_DDP_APP_TRAIN_EXPLANATION_H

#include "app/train/progress.h"

#include <jansson.h>

/* Of rank 0: who is where, who gets which samples, what moves in a step, and what memory it takes.
 * `run`: with the facts of run_facts_add_hosts. */
void explanation_say(progress *p, const json_t *run);

#endif
