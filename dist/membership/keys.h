/* All keys in the store, and the one place that builds them.
 *
 * Before each stands what the store's client puts there, "mnist_ddp/<run id>/<attempt>/" for ranks
 * and "mnist_ddp/launcher/" for agents, and then the prefix of the group that meets:
 *
 *   prefix             who meets, and for what
 *   join/              the ranks of a job, at its start (rendezvous.c)
 *   bye/               the same, at its end
 *   settings/          the same, before training: were all started alike? (agreement.c)
 *   rpc/               the same, when they open their calls (rpc.c)
 *   pg/<g>/            the ranks of process group g: which backend? (backend_choice.c)
 *   pg/<g>/peers/      the same: their processes (health/peers.c)
 *   pg/<g>/nccl/       the same: their communicator (nccl_comm.c)
 *   pg/<g>/mpi/        the same: their numbers in MPI_COMM_WORLD (backend_mpi.c)
 *   pg/<g>/barrier/<n>/  the same, in monitored barrier n (store_meeting.c)
 *   pg/<g>/call/<n>/   the same, before collective n under --debug=detail (store_meeting.c)
 *   <run id>/          the agents of a job's nodes (app/launch/roster.h)
 *
 *   key            value                               set by
 *   size           "<members> <member> <who>"          the first one to come
 *   lease/<m>      "<who>#<token>": who member m is    it (membership.h)
 *   record/<m>     what it says of itself              it
 *   came           counts those who have come          each
 *   outcome        "ok <text>" or "no <status> <why>"  the first one who knows, for good
 *   heard          counts who has read a "no"          each that has come
 *
 *   pg/created/<rank>  counts the groups that the rank has created: the last one is its <g>
 *   id                 under pg/<g>/nccl/: NCCL's unique id, by rank 0
 *   job                without a prefix: the run id, by node 0's agent before all else
 *
 * Of process group g, under pg/<g>/ (health/first_cause.c, shm_region.c, gloo/backend_gloo.cc,
 * backend_hierarchical.c; gloo's own keys lie under gloo/; the groups that a hierarchical one is
 * made of have theirs under host/<h>/, column/<c>/ and all/):
 *
 *   cause/lost           the first dead rank that anybody saw
 *   cause/departed/<r>   rank r has closed its group: collectives that it has done, its failure's
 *                        code and words, or 0
 *   cause/departed       the latest to do so
 *   cause/waits/<r>      the collective in which rank r has waited for half the timeout
 *   cause/first          who has failed first in a hierarchical group, with what
 *   shm                  the socket at which rank 0 hands out the shared memory
 *   left, all_left       counts the ranks that need gloo no longer; all do
 *
 * Of a job's ranks (health/hang_report.c, app/trace/run_trace.c):
 *
 *   alive/<r>       a watched key that goes with rank r's connection; only if rank 0 serves the
 *                   store (rendezvous.c)
 *   seen/<r>        what rank r was doing when one failed
 *   trace/<r>       its part of the trace, in pieces trace/<r>/<piece>
 *   trace/writer    the rank that writes the file
 *
 * Of calls from rank to rank (rpc.c):
 *
 *   rpc/<r>/<n>         message <n> to rank r, which deletes it
 *   rpc/sent/<r>        counts the messages to rank r
 *   rpc/answer/<r>/<n>  what came of rank r's call <n>; deleted by that
 *   rpc/alive/<r>       a watched key that goes with rank r's connection
 *
 * Agents, under <run id>/, and <a> is an attempt:
 *
 *   settings         what all nodes must have alike                    node 0
 *   size             of nodes that count themselves: how many          node 0
 *   trouble/<a>      who says that workers fail: all stop theirs       the first one
 *   alive/<n>        who node n's agent is: a watched key that goes    it
 *                    with its connection. That it is put again is its heartbeat
 *   ended/<a>/<n>    how node n's workers ended                        it
 *   outcome/<a>      what comes of that: the end, or attempt a + 1     node 0
 *
 * Of an elastic job, under mnist_ddp/rdzv/<run id>/, as watched keys (dist/store/store_session.h,
 * dist/elastic/rdzv_c10d.c); a "/" in the run id is "%2F" there:
 *
 *   state           which round is the latest, and who is in it        a node, by compare and set
 *   nodes/<id>      what a node says of itself, under its lease        it
 */
#ifndef MNIST_DDP_DIST_MEMBERSHIP_KEYS_H
#define MNIST_DDP_DIST_MEMBERSHIP_KEYS_H

#include "base/status.h"

#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of a group. */
#define KEYS_SIZE "size"
#define KEYS_CAME "came"
#define KEYS_OUTCOME "outcome"
#define KEYS_HEARD "heard"
/* Of a member, with its number. */
#define KEYS_RECORD "record"
#define KEYS_LEASE "lease"
/* Of one kind of group. */
#define KEYS_CREATED "pg/created"
#define KEYS_NCCL_ID "id"
#define KEYS_JOB "job"
#define KEYS_SETTINGS "settings"
/* Of a process group. */
#define KEYS_LOST "cause/lost"
#define KEYS_DEPARTED "cause/departed"
#define KEYS_WAITS "cause/waits"
#define KEYS_FAILURE "cause/first"
#define KEYS_SHM "shm"
#define KEYS_LEFT "left"
#define KEYS_ALL_LEFT "all_left"
#define KEYS_BARRIER "barrier" /* a monitored one */
#define KEYS_CALL "call"
/* Of a job's ranks. */
#define KEYS_SEEN "seen"
#define KEYS_TRACE "trace"
#define KEYS_TRACE_WRITER "trace/writer"
#define KEYS_RPC "rpc"
#define KEYS_RPC_SENT "rpc/sent"
#define KEYS_RPC_ANSWER "rpc/answer"
#define KEYS_RPC_ALIVE "rpc/alive"
/* Of agents that have met; and KEYS_OUTCOME, with the attempt. */
#define KEYS_TROUBLE "trouble"
#define KEYS_ALIVE "alive"
#define KEYS_ENDED "ended"
/* Of an elastic job. */
#define KEYS_RENDEZVOUS "mnist_ddp/rdzv/"
#define KEYS_STATE "state"
#define KEYS_NODES "nodes/"

enum { KEYS_BYTES = 320 };

typedef struct keys_text {
    char text[KEYS_BYTES];
} keys_text;

/* "<prefix><name>" and, unless `number` is negative, "/<number>". To be used at once:
 * store_set(s, keys_make(prefix, KEYS_RECORD, 3).text, ...). */
static inline keys_text keys_make(const char *prefix, const char *name, int number)
{
    keys_text key;
    int length = number < 0 ? snprintf(key.text, sizeof key.text, "%s%s", prefix, name)
                            : snprintf(key.text, sizeof key.text, "%s%s/%d", prefix, name, number);
    ASSERT(length >= 0 && (size_t)length < sizeof key.text);
    return key;
}

/* "<prefix><name>/<number>/<part>" */
static inline keys_text keys_make_of(const char *prefix, const char *name, int number, int part)
{
    return keys_make(keys_make(prefix, name, number).text, "", part);
}

#ifdef __cplusplus
}
#endif
#endif
