/* An attempt: one start of this node's workers, from the first to the end of the last. What the
 * agent does meanwhile, state by state, is drawn in agent.h. */
#ifndef MNIST_DDP_APP_LAUNCH_ATTEMPT_H
#define MNIST_DDP_APP_LAUNCH_ATTEMPT_H

#include "app/common/stop_signals.h"
#include "app/launch/agent_channel.h"
#include "app/launch/agent_state.h"
#include "app/launch/health_check.h"
#include "app/launch/round_agent.h"
#include "app/launch/worker_group.h"

/* The agent's; one for all its attempts. `spec`, `console` and `signals` are borrowed. */
typedef struct attempt {
    const worker_spec *spec;
    output_console *console;
    stop_signals *signals;
    health_check *health;         /* borrowed; NULL: nobody asks */
    round_agent *rounds;          /* elastic: the agent sets it; NULL */
    rdzv_news news;               /* elastic: of them, as of the last look */
    event_log *events;            /* borrowed; NULL: none are kept */
    agent_channel *channel;       /* several nodes: the agent sets it */
    agent_channel_snapshot nodes; /* what was last heard of them; one node: nothing */
    worker_group group;

    /* Of the latest one. */
    int number; /* from 0, or the round; the agent counts */
    agent_state state;
    int64_t deadline_ns;  /* when the state's time is up; AGENT_RUNNING has none */
    int signal;           /* because of it the agent stops the workers; 0: none */
    int64_t signal_ns;    /* when the latest wish to stop came; 0: none did */
    bool kills_next;      /* the next signal kills the workers */
    int64_t cause_end_ns; /* AGENT_FAILING: until when the cause is waited for; 0: it is not yet */
    bool not_started;     /* not all workers could be started */
    bool leaves;          /* elastic: as the rendezvous has said */
    bool pauses;          /* AGENT_LEAVING: at a step that all ranks agree on */

    struct pollfd *polled; /* for attempt_wait() */
} attempt;

/* What it borrows is set before; `start` is worker_group_create()'s. attempt_close also after a
 * failure. STATUS_IO, STATUS_NO_MEMORY. */
status attempt_init(attempt *self, const worker_start *start);

/* Starts all workers, unless the agent was told to stop, and waits until none is left: `state` says
 * how it ended. */
status attempt_run(attempt *self);

/* Elastic: ends the workers that wait for their next place, and returns once they have ended. */
status attempt_end_waiting(attempt *self);

/* One wait, of wait_ms at most (-1: without end), for a signal, a worker's end or output, or news
 * of the other nodes or the rounds; and what follows from it. Also before and after an attempt. */
status attempt_wait(attempt *self, int wait_ms);

void attempt_close(attempt *self);

#endif
