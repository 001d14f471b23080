/* The nodes of a job, or of an elastic job's round: how their agents meet at the store that node
 * 0's serves, who of them lives, and what they tell each other until node 0 decides for all.
 *
 * Each agent holds a watched key on its node's number, which goes with its connection; that it is
 * put again is its heartbeat. A thread of the agent does all this, so that a slow network never
 * keeps the agent from its workers. The keys (dist/membership/keys.h) lie under
 * mnist_ddp/launcher/, outside any attempt. */
#ifndef MNIST_DDP_APP_LAUNCH_ROSTER_H
#define MNIST_DDP_APP_LAUNCH_ROSTER_H

#include "app/launch/outcome.h"
#include "dist/store/store.h"

typedef struct roster roster;

enum { ROSTER_SILENT_MS = 3000 }; /* while the nodes come: who is silent so long loses its number */

/* What is known of the other nodes. */
typedef struct roster_news {
    bool joined;         /* all nodes are there */
    int nnodes;          /* if so: how many they are */
    const char *failure; /* before they have joined: why they will not; after: why this node is cut
                            off. Nothing more will come. NULL: none. The roster's */
    bool unfit;          /* with `failure`: this node does not fit the others */
    bool in_trouble;     /* this attempt is to be stopped */
    bool has_outcome;    /* node 0 has decided on this attempt: roster_take_outcome() */
} roster_news;

/* Joins the other nodes; in an elastic job those of the round, within the time after which a silent
 * node is lost. It says every few seconds what it waits for. `server`: node 0's store; the others':
 * NULL. The spec is copied. */
status roster_create(const worker_spec *spec, store_server *server, roster **out);

/* Readable if the news have changed since roster_take_news(). -1 for NULL. */
int roster_fd(const roster *r);
roster_news roster_take_news(roster *r);

/* Asks to join no more: the news soon have `failure`, or `joined` if it was too late. */
void roster_cancel_join(roster *r);

/* From now on `in_trouble` and `has_outcome` are of this attempt: neither is so yet. */
void roster_start_attempt(roster *r, int attempt);

/* Tells the others to stop. Accepts NULL. */
void roster_tell_trouble(roster *r);

/* Tells how this node's workers ended. The outcome follows once all nodes have told theirs. Node 0
 * declares a node lost that is silent for keep_alive_ms * keep_alive_misses. */
void roster_tell_end(roster *r, const node_end *end);

/* The outcome of this attempt; the caller frees it. */
group_outcome roster_take_outcome(roster *r);

/* Once the news have `failure`: whether this node has not come in time, or is gone. */
bool roster_has_lost(const roster *r, int node);

/* After the last outcome: node 0 waits until all others have read it, ROSTER_GOODBYE_MS at most.
 * Accepts NULL. false: its thread hangs in a call of the system and is left to itself; the server
 * must outlive it. */
enum { ROSTER_GOODBYE_MS = 5000 };
bool roster_destroy(roster *r);

#endif
