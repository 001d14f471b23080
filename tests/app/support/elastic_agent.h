/* An agent of an elastic job without a launcher: starts ranks, each with a link, over a store of
 * its own, and says where they stand in each round. All ranks are of one node. */
#ifndef MNIST_DDP_TESTS_APP_SUPPORT_ELASTIC_AGENT_H
#define MNIST_DDP_TESTS_APP_SUPPORT_ELASTIC_AGENT_H

#include "app/common/elastic_link.h"
#include "dist/store/store.h"
#include "tests/support/program.h"

#include <stdint.h>

enum { ELASTIC_AGENT_RANKS = 6 };

typedef struct elastic_agent_rank {
    program p;
    int fd;       /* the agent's end of the link; -1: the rank has ended */
    int64_t step; /* of its latest "left" */
} elastic_agent_rank;

typedef struct elastic_agent {
    store_server *server;
    round_fence *fence;
    const char *const *flags; /* of every rank */
    int64_t round;
    int n; /* started so far */
    elastic_agent_rank ranks[ELASTIC_AGENT_RANKS];
} elastic_agent;

void elastic_agent_open(const char *const *flags, elastic_agent *out);

/* The images of epoch 1 of 2, by its time in result.json and the rate that rank `i` has said. */
double elastic_agent_timed_images(const elastic_agent *agent, int i);

/* Ends the ranks that live. */
void elastic_agent_close(elastic_agent *agent);

/* The next round: of ranks[who[0..n-1]], in this order. Those that are not started yet are, the
 * others are asked to join. */
void elastic_agent_begin(elastic_agent *agent, const int *who, int n);

/* To the link of ranks[i]. */
void elastic_agent_say(elastic_agent *agent, int i, elastic_word word);

/* Returns once ranks[i] says that it has left the latest round; fails the test after RUN_S. Sets
 * its `step`. */
void elastic_agent_await_left(elastic_agent *agent, int i);

/* Returns once ranks[i] has ended. */
void elastic_agent_await_end(elastic_agent *agent, int i);

/* The same for all of these, with exit code 0. */
void elastic_agent_await_good_ends(elastic_agent *agent, const int *who, int n);

/* A round whose pause is wished before it begins: on a host device it takes one step.
 * elastic_agent_pause also waits until all have left it. */
void elastic_agent_begin_paused(elastic_agent *agent, const int *who, int n);
void elastic_agent_pause(elastic_agent *agent, const int *who, int n);

/* The last round: all end with exit code 0. */
void elastic_agent_end_well(elastic_agent *agent, const int *who, int n);

#endif
