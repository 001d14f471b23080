/* Until when the ranks of a node may make a step of their round: a word of memory that the agent
 * shares with them, in an elastic job. The agent moves it on with each renewal of its lease. A rank
 * looks before each step, so that it makes none after the lease's end, also if the agent and it
 * were both stopped meanwhile. A new rank finds it by $MNIST_DDP_FENCE_FD, a descriptor that it
 * inherits.
 */
#ifndef MNIST_DDP_APP_COMMON_ROUND_FENCE_H
#define MNIST_DDP_APP_COMMON_ROUND_FENCE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define ROUND_FENCE_VARIABLE "MNIST_DDP_FENCE_FD"

typedef struct round_fence round_fence;

/* The agent's. No step may be made yet. STATUS_IO. */
status round_fence_create(round_fence **out);
int round_fence_fd(const round_fence *fence); /* close-on-exec */
void round_fence_set(round_fence *fence, int64_t valid_until_ns);

/* A rank's. *out is NULL if the environment names none: then every step may be made. STATUS_IO if
 * it is not what it is to be. */
status round_fence_open(round_fence **out);

/* Whether a step may begin now. NULL: yes. */
bool round_fence_allows(const round_fence *fence);

void round_fence_close(round_fence *fence); /* accepts NULL */

#endif
