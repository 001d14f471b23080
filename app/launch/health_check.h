/* --health-check-port: says over HTTP whether this agent lives, for the probe of an orchestrator
 * (configs/cluster/job.yaml), and how far its ranks are, for Prometheus. torch's agents know the
 * port, but serve nothing at it.
 *
 *   GET /, /health or /healthz   200 {"state":"runs","round":3,"world_size":8,"age_s":0.2}
 *                                503, and the same, if the agent's loop was not seen for late_ms:
 *                                it hangs
 *   GET /metrics                 200, and lines of Prometheus' text format
 *
 * A thread of its own answers: the agent need not live to be found dead. Whoever reaches the
 * port may ask.
 */
#ifndef MNIST_DDP_APP_LAUNCH_HEALTH_CHECK_H
#define MNIST_DDP_APP_LAUNCH_HEALTH_CHECK_H

#include "base/file.h"
#include "base/status.h"

#include <stdint.h>

enum {
    HEALTH_CHECK_BEAT_MS = 1000,  /* the agent's loop comes by at least so often */
    HEALTH_CHECK_LATE_MS = 15000, /* it hangs if it has not for so long: late_ms */
};

typedef struct health_check health_check;

/* What the agent says of its job. */
typedef struct health_facts {
    const char *state; /* text that lives on: "waits", "runs" */
    int64_t round;
    int restarts, world_size;
    int first_rank, nproc;       /* this node's ranks */
    char pages[FILE_PATH_BYTES]; /* the folder of their status pages; "": they have none */
} health_facts;

/* Listens at the port (0: a free one, which the log names): at `host` if that is an address of this
 * machine, else at all of them. A negative port: *out is NULL, and the calls below do nothing.
 * STATUS_IO if the port is taken, STATUS_INVALID without the HTTP module. */
status health_check_open(const char *host, int port, int64_t late_ms, health_check **out);

/* The agent's loop is here. */
void health_check_beat(health_check *check, const health_facts *facts);

/* What poll() may wait, so that the next beat comes in time; -1 is for ever. */
int health_check_wait_ms(const health_check *check, int wait_ms);

/* Ends the thread, within half a second. Accepts NULL. */
void health_check_close(health_check *check);

#endif
