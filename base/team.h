/* A fixed team of threads that share the pieces of one job after another.
 *
 * A job is cut into pieces by its shape alone, never by the number of threads, and no piece reads
 * what another one writes: so a team of any size leaves the same bits.
 */
#ifndef MNIST_DDP_BASE_TEAM_H
#define MNIST_DDP_BASE_TEAM_H

#include "base/status.h"

typedef struct team team;
struct trace; /* base/trace.h */
struct trace_lane;

/* Does piece `piece` of the job. */
typedef void (*team_fn)(void *arg, int piece);

/* Starts `threads` - 1 threads (threads >= 1); the caller of team_run is the last member.
 * `on_start`, unless NULL, is called once on every member's thread, the caller's included.
 * STATUS_NO_MEMORY if a thread cannot be started. */
status team_create(int threads, void (*on_start)(void), team **out);

/* Ends and joins the threads. Accepts NULL. */
void team_destroy(team *team);

/* Calls fn(arg, 0) ... fn(arg, pieces - 1), shared out over the members; returns when all are done.
 * One caller at a time. */
void team_run(team *team, team_fn fn, void *arg, int pieces);

/* From now on each of the started threads notes in a lane of `t`, "compute 1 of main" and on, which
 * pieces it did: named as what the caller of team_run does just then in `caller`, the lane of its
 * thread. Call before team_run. */
status team_trace(team *team, struct trace *t, struct trace_lane *caller);

/* Member i, one of the started threads, from now on runs on cores->ids[i] alone. There are as many
 * as members. */
struct cores; /* base/cores.h */
void team_bind(team *team, const struct cores *cores);

int team_threads(const team *team);

/* Inside a piece: which member (0 .. threads-1) does it; for scratch memory, never for results. */
int team_member(void);

#endif
