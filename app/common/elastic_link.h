/* What the agent of a node and a rank of an elastic training say to each other. The rank inherits
 * one end of a socket pair (SOCK_SEQPACKET), whose number is in $MNIST_DDP_ELASTIC_FD: a message is
 * a packet, one line of JSON.
 *
 *   agent            rank            means
 *   {"pause": 3}                     end round 3 at a step that all ranks agree on: all still live
 *   {"leave": 3}                     end round 3 now: a node is lost, or the lease is. Collectives
 *                                    under way fail.
 *                    {"left": 3, "step": 812}
 *                                    it runs no round, and has the state after step 812 (-1: none);
 *                                    with "unmet": true if it had not met all other ranks
 *   {"join": {...}}                  its place in the next round: the process goes on
 *
 * A rank that has left and is not asked to join within the time that --join-timeout says ends (69);
 * so does one whose agent is gone. After a failure that no other rank explains (flags, data, its
 * own error) a rank does not leave: it ends with its exit code as ever.
 */
#ifndef MNIST_DDP_APP_COMMON_ELASTIC_LINK_H
#define MNIST_DDP_APP_COMMON_ELASTIC_LINK_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define ELASTIC_FD_VARIABLE "MNIST_DDP_ELASTIC_FD"
#define ELASTIC_ROUND_VARIABLE "MNIST_DDP_ROUND" /* the round that a new rank begins in */

typedef enum elastic_word { ELASTIC_PAUSE, ELASTIC_LEAVE, ELASTIC_LEFT, ELASTIC_JOIN } elastic_word;

/* A rank's place in a round: what a new process finds in its environment. */
typedef struct elastic_place {
    int64_t round;
    int rank, world_size, local_rank, local_world_size;
    int node_rank, nnodes;
    int restarts;
    char master_addr[256];
    int master_port;
} elastic_place;

typedef struct elastic_message {
    elastic_word word;
    int64_t round;       /* in every message */
    int64_t step;        /* in ELASTIC_LEFT: the rank has the state after it; -1: none */
    bool unmet;          /* in ELASTIC_LEFT: the ranks of the round have not all met */
    elastic_place place; /* in ELASTIC_JOIN */
} elastic_message;

/* Does not block: STATUS_PEER if the other end is gone or does not read. */
status elastic_link_send(int fd, const elastic_message *message);

/* Does not block. *came: whether there was a message. STATUS_PEER: the other end is gone;
 * STATUS_INVALID: it sent nonsense. */
status elastic_link_receive(int fd, elastic_message *out, bool *came);

/* Until when the ranks of a node may make a step of their round: a word of memory that the agent
 * shares with them, in an elastic job. The agent moves it on with each renewal of its lease. A rank
 * looks before each step, so that it makes none after the lease's end, also if the agent and it
 * were both stopped meanwhile. A new rank finds it by $MNIST_DDP_FENCE_FD, a descriptor that it
 * inherits.
 */

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
