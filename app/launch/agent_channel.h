/* What the agents of a job's nodes tell each other, through the store that node 0 serves.
 *
 * A thread of the agent does it, so that a slow network never keeps the agent from its
 * workers. The keys (dist/membership/keys.h) lie under mnist_ddp/launcher/, outside any attempt.
 */
#ifndef MNIST_DDP_APP_LAUNCH_AGENT_CHANNEL_H
#define MNIST_DDP_APP_LAUNCH_AGENT_CHANNEL_H

#include "app/launch/group_outcome.h"
#include "dist/store/store.h"

typedef struct agent_channel agent_channel;

typedef enum agent_channel_event {
    CHANNEL_NO_EVENT,
    CHANNEL_JOINED,     /* all nodes are there, and their number is known */
    CHANNEL_NOT_JOINED, /* they will not be: agent_channel_why() */
    CHANNEL_TROUBLE,    /* this attempt is to be stopped */
    CHANNEL_OUTCOME,    /* node 0 has decided on this attempt: agent_channel_outcome() */
    CHANNEL_CUT_OFF,    /* the store is out of reach, and nothing more will come: why() */
} agent_channel_event;

/* Joins the other nodes: CHANNEL_JOINED or CHANNEL_NOT_JOINED follows. `server`: if this node
 * serves the store; else NULL. The spec must outlive the channel. */
status agent_channel_create(const worker_spec *spec, store_server *server, int port,
                            agent_channel **out);

/* Readable when agent_channel_next() has something to tell. */
int agent_channel_fd(const agent_channel *channel);
agent_channel_event agent_channel_next(agent_channel *channel);

/* This node's number, once joined. */
int agent_channel_node(const agent_channel *channel);
const char *agent_channel_why(const agent_channel *channel);

/* From now on it is this attempt's trouble and outcome that are told. */
void agent_channel_start(agent_channel *channel, int attempt);

/* Tells the others to stop. */
void agent_channel_tell_trouble(agent_channel *channel);

/* Tells them that this agent was told to stop: node 0 starts no further attempt. */
void agent_channel_tell_stop(agent_channel *channel, int signal);

/* Tells how this node's workers ended; CHANNEL_OUTCOME follows once all nodes have said it. Node 0
 * declares a node lost that is silent for keep_alive_ms * keep_alive_misses. */
void agent_channel_tell_report(agent_channel *channel, const node_report *report);

/* The last outcome; the caller frees it. */
group_outcome agent_channel_outcome(agent_channel *channel);

/* After the last outcome: node 0 waits until all others have read it, CHANNEL_GOODBYE_MS at most.
 * Accepts NULL. false: its thread hangs in a call of the system and is left to itself; the server
 * must outlive it. */
enum { CHANNEL_GOODBYE_MS = 5000 };
bool agent_channel_destroy(agent_channel *channel);

#endif
