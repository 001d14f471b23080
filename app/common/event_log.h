/* --event-log=FILE: who was in the job and when, one line of JSON per event.
 *
 *   {"time":"2026-11-23T11:30:02.117Z","monotonic_ns":5123456789,"node":"hostA_4711_1f3c",
 *    "run_id":"123","round":3,"event":"leaves","reason":"node 2 (hostC) is lost"}
 *
 * `time` is for readers: it may jump. `monotonic_ns` is clock_now_ns(), the same clock for all
 * processes of a host, and what events are ordered by. `node` of a rank is its host and its pid.
 * Every line has the first six keys; then come those of its event:
 *
 *   event         of     further keys
 *   waits         agent  the node waits for the round after `round` (0: for its first); left_s:
 *                        since `leaves`, if it was in one: its ranks are out of it
 *   round_begins  agent  node_rank, world_size, restarts, members: [{node, first_rank, nproc}]
 *                        (node: null for a static job's other nodes); waited_s: since `waits`
 *   node_gone     agent  gone: the id of a node of the round before that is not in `round`: its
 *                        lease has ended, it has left, or it was lost
 *   workers       agent  pids: by local rank, kept: how many of them ran in an earlier round
 *   opens         rank   rank, world_size, step, epoch: what is done; state: a hash of parameters
 *                        and optimizer; opened_s: since it was asked for the round, or started; and
 *                        if it was in an earlier one, left_s: since it knew that that one is over
 *                        until it was out of it, waited_s: from there until it was asked
 *   first_step    rank   rank, step, epoch: its first step in the round is done; stepped_s: since
 *                        `opens`
 *   step          rank   rank, world_size, step, epoch, samples, hash: with --event-log-steps, what
 *                        the rank brings to a step that it is about to make
 *   node_lost     agent  lost: the id of a node whose connections have closed
 *   leaves        agent  reason: the node's ranks leave the round
 *   closed        agent  reason: nobody begins another round
 *   ends          agent  code: the agent's exit code
 *
 * All agents and ranks of a host may write to one file: a line is one write at the end of it
 * (O_APPEND), so lines do not mix. An empty line means nothing: a process that opens the file
 * cannot tell a line that is being written from one that was cut. A static job's attempts count as
 * rounds, from 0. Over a network file system lines
 * may mix: give each node its own.
 */
#ifndef MNIST_DDP_APP_COMMON_EVENT_LOG_H
#define MNIST_DDP_APP_COMMON_EVENT_LOG_H

#include "base/status.h"
#include "dist/elastic/round.h"

#include <stdint.h>
#include <sys/types.h>

typedef struct event_log event_log;

/* Opens the file and makes it if it is missing; a line that another process has been killed in is
 * ended. `node` is the id in round_node. NULL or "" for the path: *out is NULL, and the calls below
 * do nothing. STATUS_IO, STATUS_NO_MEMORY. */
status event_log_open(const char *path, const char *run_id, const char *node, event_log **out);
void event_log_close(event_log *log); /* accepts NULL */

/* Each writes a line; an agent and a rank from one thread. A reader that is slow is not waited for.
 * What cannot be written is left out, and the first time the log says so: the job goes on. */

void event_log_waits(event_log *log, int64_t round);
void event_log_round_begins(event_log *log, const round_state *now, int node_rank);
void event_log_workers(event_log *log, int64_t round, const pid_t *pids, int n, int kept);
void event_log_ends(event_log *log, int64_t round, int code);

/* The events that say one text. */
typedef enum event_log_kind {
    EVENT_LOG_NODE_GONE,
    EVENT_LOG_NODE_LOST,
    EVENT_LOG_LEAVES,
    EVENT_LOG_CLOSED
} event_log_kind;

void event_log_text(event_log *log, int64_t round, event_log_kind kind, const char *text);

/* How a rank comes into a round. */
typedef struct event_log_opening {
    int64_t round;
    int rank, world_size;
    int64_t step, epoch;     /* that are done */
    uint64_t state;          /* the hash */
    double left_s, waited_s; /* negative: it was in no round before */
    double opened_s;
} event_log_opening;

void event_log_opens(event_log *log, const event_log_opening *opening);

/* What a rank does in a step. */
typedef struct event_log_step {
    int64_t round;
    int rank, world_size;
    int64_t step, epoch; /* the step's number in the whole training, from 1; the epoch, from 1 */
    int64_t samples;     /* those that it adds, without padding */
    uint64_t hash;       /* the sum of event_log_sample() of their indices: any order, each once */
} event_log_step;

/* After event_log_opens. */
void event_log_first_step(event_log *log, const event_log_step *step);
void event_log_step_begins(event_log *log, const event_log_step *step);

/* A sample's part of the hash: its index, mixed. */
uint64_t event_log_sample(int64_t index);

#endif
