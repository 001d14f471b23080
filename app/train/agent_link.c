#include "app/train/agent_link.h"

#include "app/common/elastic_link.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"

#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LOOK_MS = 50, WHY_BYTES = 160 };

struct agent_link {
    int fd;
    round_fence *fence;
    pthread_t thread;
    socket_breaker breaker; /* breaks the round's connection to the store */
    atomic_bool pause;      /* a pause is wished for the round */
    atomic_bool over;       /* the round is over */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    int64_t round;        /* the one that the rank runs, or has left */
    int64_t pauses, ends; /* the latest round of which the agent has said so: it may have been
                             before the rank began it */
    process_group *group; /* NULL: none is open */
    bool is_done;         /* the run is done: nothing ends the round before its ranks do */
    bool ending, gone, joins;
    elastic_place next; /* the rank's place in the next round, if it joins */
};

/* The lock is held. What the rank waits for fails. */
static void end_round(agent_link *link, const char *why)
{
    if (atomic_exchange(&link->over, true))
        return;
    socket_breaker_break(&link->breaker);
    if (link->group != NULL)
        process_group_abort(link->group, why);
}

/* The lock is held. What the agent has said of the round. */
static void obey(agent_link *link)
{
    char why[WHY_BYTES];
    if (link->is_done)
        return;
    snprintf(why, sizeof why, "the agent has ended round %" PRId64, link->round);
    if (link->pauses >= link->round)
        atomic_store(&link->pause, true);
    if (link->ends >= link->round)
        end_round(link, why);
}

/* The lock is held. */
static void take(agent_link *link, const elastic_message *message)
{
    switch (message->word) {
    case ELASTIC_PAUSE:
        link->pauses = message->round;
        obey(link);
        break;
    case ELASTIC_LEAVE:
        link->ends = message->round;
        obey(link);
        break;
    case ELASTIC_JOIN:
        link->joins = true;
        link->next = message->place;
        pthread_cond_signal(&link->changed);
        break;
    case ELASTIC_LEFT:
        break;
    }
}

/* Takes what has come; false: nothing more will. */
static bool take_all(agent_link *link)
{
    elastic_message message;
    bool came = true;
    status st = STATUS_OK;
    pthread_mutex_lock(&link->lock);
    while (st == STATUS_OK && came) {
        st = elastic_link_receive(link->fd, &message, &came);
        if (st == STATUS_OK && came)
            take(link, &message);
    }
    if (st != STATUS_OK && !link->ending) {
        if (st != STATUS_PEER)
            LOG_E("%s", status_text());
        link->gone = true;
        end_round(link, "the agent is gone");
        pthread_cond_signal(&link->changed);
    }
    pthread_mutex_unlock(&link->lock);
    return st == STATUS_OK;
}

static void *listen_to_agent(void *arg)
{
    agent_link *link = arg;
    struct pollfd entry = {.fd = link->fd, .events = POLLIN};
    do
        (void)poll(&entry, 1, -1);
    while (take_all(link));
    return NULL;
}

static status check_link(int fd)
{
    int type = 0;
    socklen_t size_bytes = sizeof type;
    if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size_bytes) != 0 ||
        type != SOCK_SEQPACKET)
        return FAIL(STATUS_INVALID, ELASTIC_FD_VARIABLE "=%.40s is no link with an agent",
                    environment_text(ELASTIC_FD_VARIABLE));
    return STATUS_OK;
}

/* Its thread does not run. */
static void destroy(agent_link *link)
{
    close(link->fd);
    round_fence_close(link->fence);
    socket_breaker_close(&link->breaker);
    pthread_cond_destroy(&link->changed);
    pthread_mutex_destroy(&link->lock);
    free(link);
}

status agent_link_open(agent_link **out)
{
    const char *text = environment_text(ELASTIC_FD_VARIABLE);
    int fd = -1;
    *out = NULL;
    if (text == NULL)
        return STATUS_OK;
    (void)number_parse(text, 0, INT_MAX, &fd);
    TRY(check_link(fd));
    agent_link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return FAIL(STATUS_NO_MEMORY, "a link with an agent");
    link->fd = fd;
    link->round = INT64_MAX; /* none yet */
    pthread_mutex_init(&link->lock, NULL);
    pthread_cond_init(&link->changed, NULL);
    socket_breaker_init(&link->breaker);
    status st = round_fence_open(&link->fence);
    if (st == STATUS_OK)
        st = thread_start(listen_to_agent, link, "the link's", &link->thread);
    if (st == STATUS_OK) {
        *out = link;
        return STATUS_OK;
    }
    destroy(link);
    return st;
}

void agent_link_close(agent_link *link)
{
    if (link == NULL)
        return;
    pthread_mutex_lock(&link->lock);
    link->ending = true;
    pthread_mutex_unlock(&link->lock);
    (void)shutdown(link->fd, SHUT_RD); /* wakes the thread */
    pthread_join(link->thread, NULL);
    destroy(link);
}

void agent_link_begin_round(agent_link *link, int64_t round, socket_breaker **breaker)
{
    *breaker = NULL;
    if (link == NULL)
        return;
    pthread_mutex_lock(&link->lock);
    link->round = round;
    link->joins = link->joins && link->next.round > round;
    link->is_done = false;
    if (!link->gone) {
        atomic_store(&link->pause, false);
        atomic_store(&link->over, false);
        socket_breaker_close(&link->breaker);
        socket_breaker_init(&link->breaker);
        obey(link);
    }
    *breaker = &link->breaker;
    pthread_mutex_unlock(&link->lock);
}

void agent_link_set_group(agent_link *link, process_group *group)
{
    if (link == NULL)
        return;
    pthread_mutex_lock(&link->lock);
    link->group = group;
    if (group != NULL && atomic_load(&link->over))
        process_group_abort(group, "the round is over");
    pthread_mutex_unlock(&link->lock);
}

bool agent_link_wants_pause(const agent_link *link)
{
    return link != NULL && atomic_load_explicit(&link->pause, memory_order_relaxed);
}

status agent_link_check(const agent_link *link)
{
    if (link == NULL)
        return STATUS_OK;
    if (!round_fence_allows(link->fence))
        return FAIL(STATUS_PEER, "the node's lease has ended: its ranks make no step");
    return atomic_load_explicit(&link->over, memory_order_relaxed)
               ? FAIL(STATUS_PEER, "the round is over")
               : STATUS_OK;
}

void agent_link_finish(agent_link *link)
{
    if (link == NULL)
        return;
    pthread_mutex_lock(&link->lock);
    link->is_done = true;
    pthread_mutex_unlock(&link->lock);
}

status agent_link_left(agent_link *link, int64_t step, bool unmet)
{
    pthread_mutex_lock(&link->lock);
    elastic_message message = {
        .word = ELASTIC_LEFT, .round = link->round, .step = step, .unmet = unmet};
    pthread_mutex_unlock(&link->lock);
    return elastic_link_send(link->fd, &message);
}

static void move_to(const elastic_place *next, rendezvous_place *place)
{
    place->round = next->round;
    place->rank = next->rank;
    place->world_size = next->world_size;
    place->local_rank = next->local_rank;
    place->local_world_size = next->local_world_size;
    place->node_rank = next->node_rank;
    place->restart_count = next->restarts;
    place->master_port = next->master_port;
    snprintf(place->master_addr, sizeof place->master_addr, "%s", next->master_addr);
}

status agent_link_await_join(agent_link *link, const atomic_int *asked_by, rendezvous_place *place)
{
    status st = STATUS_OK;
    pthread_mutex_lock(&link->lock);
    while (!link->joins && st == STATUS_OK) {
        (void)clock_await(&link->changed, &link->lock, clock_deadline_ns(LOOK_MS));
        if (link->gone)
            st = FAIL(STATUS_IO, "the agent of this rank is gone");
        else if (atomic_load(asked_by) != 0)
            st = FAIL(STATUS_IO, "SIG%s came while this rank waited for a place in the next round",
                      sigabbrev_np(atomic_load(asked_by)));
    }
    if (link->joins)
        move_to(&link->next, place);
    st = link->joins ? STATUS_OK : st;
    pthread_mutex_unlock(&link->lock);
    return st;
}
