/* How an attempt ended, from one worker to the whole job, and what a user is told of it. An agent
 * says how its node's workers ended; node 0's makes the outcome of all that. */
#ifndef MNIST_DDP_APP_LAUNCH_OUTCOME_H
#define MNIST_DDP_APP_LAUNCH_OUTCOME_H

#include "app/launch/workers.h"
#include "dist/health/hang_report.h"
#include "dist/health/rank_status.h"

/* The states of an agent, as agent.h draws them. It also tells the others the last one. */
typedef enum agent_state {
    AGENT_JOINING, /* no worker was started yet */

    /* Workers run. */
    AGENT_RUNNING,
    AGENT_FAILING,  /* a worker failed; the others may notice by themselves */
    AGENT_SAVING,   /* all were asked for a last checkpoint */
    AGENT_LEAVING,  /* all were asked to leave the round of an elastic job, and to wait */
    AGENT_STOPPING, /* all were told to end */
    AGENT_KILLING,  /* all have got SIGKILL */

    /* How an attempt ended. */
    AGENT_SUCCEEDED, /* all workers here ended well */
    AGENT_PREEMPTED, /* all wrote a checkpoint and ended, as they were asked to */
    AGENT_SIGNALED,  /* the agent got a signal, and stopped them */
    AGENT_STOPPED,   /* they were stopped because of what happened on another node */
    AGENT_FAILED,    /* a worker here failed */
    AGENT_BROKEN,    /* they could not be started or ended */
    AGENT_DIVERGED,  /* all ended at a loss that is not finite */
    AGENT_LEFT,      /* they have left the round, as the rendezvous has said */

    AGENT_STATES
} agent_state;

enum { FAILURE_HOST_BYTES = 256, FAILURE_SAYS_BYTES = 2000, NODE_END_TEXT_BYTES = 600 };

/* How a worker failed: what the report, the other nodes and error.json are made of. Plain data;
 * texts behind pointers are owned. */
typedef struct process_failure {
    int node, rank, local_rank, pid;
    int wait_status;         /* as of waitpid */
    int start_errno;         /* why it could not be executed; 0 */
    cause_priority priority; /* "weight" in the JSON for other nodes */
    double after_s;          /* from the launch to its end */
    bool memory_killed;      /* the kernel's out-of-memory killer was at work meanwhile */
    char host[FAILURE_HOST_BYTES];
    char says[FAILURE_SAYS_BYTES]; /* the message in its error.json; "" */
    char doing[RANK_TEXT_BYTES];   /* where it was last, by its status page; "" */
    char folder[FILE_PATH_BYTES];  /* where its log and error.json are, on its host; "" */
    char *others;                  /* what became of the other ranks of its node; NULL or lines */
    char *words;                   /* the last lines of its stderr, each with its end; "" */
} process_failure;

/* How one node's workers ended in an attempt, as its agent tells node 0's. */
typedef struct node_end {
    int node;                          /* whose it is */
    agent_state state;                 /* AGENT_SUCCEEDED or later */
    int signal;                        /* the one that made its agent stop; 0: none */
    bool lost;                         /* nothing was heard of the node: `text` says how long */
    bool unmet;                        /* elastic: its ranks had not met all others */
    process_failure cause;             /* set with AGENT_FAILED; owned */
    char hangs[HANG_REPORT_WHO_BYTES]; /* its ranks that hang, as hang_report_name has it */
    char *notes; /* where its ranks were, if one waited in vain: lines, or NULL; owned */
    char text[NODE_END_TEXT_BYTES];
} node_end;

/* `signal`: the one that made the agent stop, or 0;
 * memory_killed: the kernel was short of memory meanwhile. */
status node_end_make(const worker_group *group, agent_state state, int signal, bool memory_killed,
                     node_end *out);
void node_end_free(node_end *end);

/* One line of JSON, to be freed with free(). */
status node_end_write(const node_end *end, char **out);
/* What node `node` sent. STATUS_PEER if it is nonsense, or speaks of the ranks of another node. */
status node_end_read(const char *text, int node, const worker_spec *spec, node_end *out);

/* What the end of an attempt means for all nodes. */
typedef struct group_outcome {
    bool again;  /* all start their workers again, as the next attempt */
    bool counts; /* with `again`: as one of --max-restarts, because a rank has failed */
    bool unmet;  /* with `again`: elastic: the ranks of the round have not all met */
    int code;    /* else what all exit with: the first failing rank's code, 0, ... */
    bool failed; /* `cause` is set */
    process_failure cause;
    char *notes;                       /* all nodes'; never NULL */
    char hangs[HANG_REPORT_WHO_BYTES]; /* on all nodes: who is stopped, else who is late; "" */
    char text[NODE_END_TEXT_BYTES];    /* if no rank is to blame: what happened; "" */
    int told_by;                       /* the node whose agent has said `text` already; -1: none */
    int *lost;                         /* nodes that are gone, in their order; owned */
    int n_lost;
} group_outcome;

/* From the ends of all nodes; or of this one (n = 1), if it decides alone. A static job goes on
 * if a rank has failed, restarts are left and nobody was told to stop. An elastic one goes on also
 * without the nodes that are lost or were told to stop, unless all were. */
status group_outcome_make(const node_end *ends, int n, const worker_spec *spec, group_outcome *out);

/* What comes through the store may come from anybody. If `out` cannot be true beside what
 * happened here (all is well, though ranks of this node failed or were stopped; one restart more
 * than there are), the outcome is made from `own` alone, and says so. */
status group_outcome_doubt(const node_end *own, const worker_spec *spec, group_outcome *out);
void group_outcome_free(group_outcome *outcome);

/* One line of JSON each, to be freed with free(); STATUS_PEER if what came is nonsense. */
status group_outcome_write(const group_outcome *outcome, char **out);
status group_outcome_read(const char *text, group_outcome *out);

/* What the agent says of a failure. */
typedef struct failure_report {
    const worker_spec *spec;
    const node_end *own;
    const group_outcome *outcome;
} failure_report;

/* Says on stderr why the attempt has failed, if it has. The agent of the worker that failed first,
 * and node 0's, show it whole; the others one line. Also writes that worker's error.json, if it is
 * of this node; and after the last attempt this launcher's own, to $TORCHELASTIC_ERROR_FILE, which
 * whoever has started it reads. */
void failure_report_show(const failure_report *report, output_console *console);

/* Says this thread's message, why the launcher itself has failed, there and on stderr. */
void failure_report_own(status st, int code);

#endif
