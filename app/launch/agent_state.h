/* The states of an agent, as agent.h draws them. An agent also reports the last one to the
 * others. */
#ifndef MNIST_DDP_APP_LAUNCH_AGENT_STATE_H
#define MNIST_DDP_APP_LAUNCH_AGENT_STATE_H

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

#endif
