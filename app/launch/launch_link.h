/* What the launchers of a job's nodes tell each other, through the store that node 0 serves.
 *
 * A thread of the launcher does it, so that a slow network never keeps the launcher from its
 * workers. All keys lie under mnist_ddp/launcher/, outside any generation:
 *
 *   job                 the run id: a launcher of another job is turned away
 *   <id>/settings       what all nodes must have alike, as node 0 has it
 *   <id>/arrived        counts nodes that get their numbers as they come
 *   <id>/claim/<n>      "<host> <address> <pid>#...": the launcher that is node n
 *   <id>/refused        why the job cannot start; all that still wait give up
 *   <id>/started        all have met; who comes now is turned away and hurts nobody
 *   <id>/beat/<n>       changes while node n's launcher lives
 *   <id>/trouble/<g>    who says that workers of generation g fail: all stop theirs
 *   <id>/stop/<n>       the signal that has told node n's launcher to stop: no generation follows
 *   <id>/end/<g>/<n>    how node n's workers of generation g ended
 *   <id>/verdict/<g>    what node 0 makes of that: the end, or generation g + 1
 *   <id>/bye            counts who has read the last verdict, or does not wait for it
 */
#ifndef MNIST_DDP_APP_LAUNCH_LINK_H
#define MNIST_DDP_APP_LAUNCH_LINK_H

#include "app/launch/launch_verdict.h"
#include "dist/store/store.h"

typedef struct launch_link launch_link;

typedef enum launch_event {
    LAUNCH_NO_EVENT,
    LAUNCH_JOINED,     /* all nodes are there, and their number is known */
    LAUNCH_NOT_JOINED, /* they will not be: launch_link_why() */
    LAUNCH_TROUBLE,    /* this generation is to be stopped */
    LAUNCH_VERDICT,    /* this generation is judged: launch_link_verdict() */
    LAUNCH_CUT_OFF,    /* the store is out of reach, and nothing more will come: why() */
} launch_event;

/* Joins the other nodes: LAUNCH_JOINED or LAUNCH_NOT_JOINED follows. `server`: where this node
 * serves the store; else NULL. Settings must outlive the link. */
status launch_link_create(const launch_settings *settings, store_server *server, int port,
                          launch_link **out);

/* Readable when launch_link_next() has something to tell. */
int launch_link_fd(const launch_link *link);
launch_event launch_link_next(launch_link *link);

/* This node's number, once joined. */
int launch_link_node(const launch_link *link);
const char *launch_link_why(const launch_link *link);

/* From now on it is this generation's trouble and verdict that are told. */
void launch_link_start(launch_link *link, int generation);

/* Tells the others to stop. */
void launch_link_trouble(launch_link *link);

/* Tells them that this launcher was told to stop: node 0 starts no further generation. */
void launch_link_stop(launch_link *link, int signal);

/* Tells how this node's workers ended; LAUNCH_VERDICT follows once all nodes have said it. Node 0
 * declares a node lost that is silent for keep_alive_ms * keep_alive_misses. */
void launch_link_end(launch_link *link, const launch_record *record);

/* The last verdict; the caller frees it. */
launch_verdict launch_link_verdict(launch_link *link);

/* After the last verdict: node 0 waits until all others have read it, LAUNCH_GOODBYE_MS at most.
 * Accepts NULL. false: its thread hangs in a call of the system and is left to itself; the server
 * must outlive it. */
enum { LAUNCH_GOODBYE_MS = 5000 };
bool launch_link_destroy(launch_link *link);

#endif
