/* An agent's part in the rounds of an elastic job: it announces itself where the nodes meet, gets
 * its place in each round from there, and keeps the fence of its ranks (app/common/round_fence.h).
 * docs/internals/elastic.md says what a round is. */
#ifndef MNIST_DDP_APP_LAUNCH_ROUND_AGENT_H
#define MNIST_DDP_APP_LAUNCH_ROUND_AGENT_H

#include "app/common/event_log.h"
#include "app/launch/worker_spec.h"
#include "dist/elastic/rdzv.h"

typedef struct round_agent round_agent;

/* "hostA_4711_1f3c": nobody else's, as a host has no two processes of one number at a time. */
void round_agent_make_id(char out[ROUND_ID_BYTES]);

/* Takes part from now on, as `id`. The spec's master_addr and master_port say where this node's
 * store listens. The spec is borrowed, and changed by round_agent_begin; what happens goes to
 * `events`, borrowed too. STATUS_IO, STATUS_NO_MEMORY. */
status round_agent_create(worker_spec *spec, const char *id, event_log *events, round_agent **out);
void round_agent_destroy(round_agent *self); /* gives the record back; accepts NULL */

int round_agent_fd(const round_agent *self);       /* readable: there is news */
int round_agent_fence_fd(const round_agent *self); /* for the ranks */

/* Also moves the fence on. The phase is RDZV_LEAVES from the end of the lease on, also if the
 * rendezvous has not said so yet. What it points to lives until the next look. */
rdzv_news round_agent_look(round_agent *self);

/* Puts this node's place in the round that begins into the spec: node_rank, nnodes, world_size,
 * nprocs, round, restarts, and node 0's address as master_addr and master_port. */
status round_agent_begin(round_agent *self);

/* This node of the round is gone, or did not come: the next round is without it. */
void round_agent_note_lost(round_agent *self, int node);

typedef enum round_parting {
    ROUND_PARTING_UNMET,  /* the nodes of the round have not met: who was noted did not come */
    ROUND_PARTING_APART,  /* they have, and not all ranks: node 0 names the last one */
    ROUND_PARTING_PLAIN,  /* it has ended, at no cost */
    ROUND_PARTING_COUNTS, /* it costs a restart */
} round_parting;

/* No rank of this node runs the round any more. */
void round_agent_left(round_agent *self, round_parting how);

/* The job has ended. */
void round_agent_close(round_agent *self, round_ending ending);

#endif
