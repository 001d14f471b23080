/* A rank's end of the link with its agent, in an elastic job: a thread that learns when a round
 * ends and where the rank stands in the next one. docs/internals/elastic.md has the whole.
 */
#ifndef MNIST_DDP_APP_TRAIN_AGENT_LINK_H
#define MNIST_DDP_APP_TRAIN_AGENT_LINK_H

#include "dist/net/socket.h"
#include "dist/process_group/process_group.h"
#include "dist/rendezvous.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct agent_link agent_link;

/* *out is NULL if $MNIST_DDP_ELASTIC_FD is not set: the job is not elastic. STATUS_INVALID: what it
 * names is no link. */
status agent_link_open(agent_link **out);
void agent_link_close(agent_link *link); /* accepts NULL */

/* What follows accepts NULL, but for agent_link_left and agent_link_await_join.
 *
 * A round begins: the agent's word about it ends what the rank waits for at the store, by
 * *breaker, which lives until the next round begins. */
void agent_link_begin_round(agent_link *link, int64_t round, socket_breaker **breaker);

/* The group that the end of the round aborts from now on; NULL before it is destroyed. */
void agent_link_set_group(agent_link *link, process_group *group);

/* Whether the agent wishes that all ranks pause. */
bool agent_link_wants_pause(const agent_link *link);

/* Before a step: STATUS_PEER if the round is over, or the node's lease has ended. */
status agent_link_check(const agent_link *link);

/* The run is done but for its last words: from now on the agent's do not end the round. */
void agent_link_finish(agent_link *link);

/* The rank runs no round, and has the state after `step` (-1: none). unmet: the latest one's ranks
 * had not all met. */
status agent_link_left(agent_link *link, int64_t step, bool unmet);

/* Waits for the rank's place in the next round, and sets it in *place, as long as its agent waits:
 * that one knows the job's --join-timeout. STATUS_IO if the agent is gone, or a signal asks for the
 * run's end: *asked_by is its number. */
status agent_link_await_join(agent_link *link, const atomic_int *asked_by, rendezvous_place *place);

#endif
