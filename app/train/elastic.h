/* A rank's end of the link with its agent, in an elastic job: a thread that learns when a round
 * ends and where the rank stands in the next one. docs/internals/elastic.md has the whole.
 */
#ifndef MNIST_DDP_APP_TRAIN_ELASTIC_H
#define MNIST_DDP_APP_TRAIN_ELASTIC_H

#include "dist/net/socket.h"
#include "dist/process_group/process_group.h"
#include "dist/rendezvous.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct elastic elastic;

/* *out is NULL if $MNIST_DDP_ELASTIC_FD is not set: the job is not elastic. STATUS_INVALID: what it
 * names is no link. */
status elastic_open(elastic **out);
void elastic_close(elastic *link); /* accepts NULL */

/* What follows accepts NULL, but for elastic_left and elastic_await_join.
 *
 * A round begins: the agent's word about it ends what the rank waits for at the store, by
 * *breaker, which lives until the next round begins. */
void elastic_begin_round(elastic *link, int64_t round, socket_breaker **breaker);

/* The group that the end of the round aborts from now on; NULL before it is destroyed. */
void elastic_set_group(elastic *link, process_group *group);

/* Whether the agent wishes that all ranks pause. */
bool elastic_wants_pause(const elastic *link);

/* Before a step: STATUS_PEER if the round is over, or the node's lease has ended. */
status elastic_check(const elastic *link);

/* The run is done but for its last words: from now on the agent's do not end the round. */
void elastic_finish(elastic *link);

/* The rank runs no round, and has the state after `step` (-1: none). unmet: the latest one's ranks
 * had not all met. */
status elastic_left(elastic *link, int64_t step, bool unmet);

/* Waits for the rank's place in the next round, and sets it in *place, as long as its agent waits:
 * that one knows the job's --join-timeout. STATUS_IO if the agent is gone, or a signal asks for the
 * run's end: *asked_by is its number. */
status elastic_await_join(elastic *link, const atomic_int *asked_by, rendezvous_place *place);

#endif
