/* A collective has two counts per rank: how many it has begun, and how many it has ended. A rank
 * begins the next one only after all have ended the last. So what the ranks came with stays in
 * place while anybody reads it, and a rank that closes its group leaves nobody waiting.
 *
 * A rank whose collective has failed takes its data back: nobody begins to use it from then on, and
 * the rank waits for those that have begun.
 *
 * A message is on one list of the hub until its receiver has copied it (local_messages.c). Whoever
 * waits, for whatever, first takes what has come for it: so two ranks that wait for different
 * messages of each other do not wait for ever.
 */
#include "dist/backends/local/local_hub.h"

#include "base/clock.h"
#include "dist/backends/local/local_messages.h"
#include "dist/health/first_cause.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { DROP_MS = 10000 }; /* longer than anybody copies */

typedef enum local_count { BEGUN, ENDED, COUNTS } local_count;

typedef struct local_rank {
    uint64_t counts[COUNTS]; /* of collectives */
    collective what;         /* of the latest begun */
    bool uses;               /* what the others came with */
    bool failed;             /* nobody begins to use what it came with */
    bool left;
} local_rank;

struct local_hub {
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    int world_size;
    local_rank *ranks;        /* (world_size) */
    const collective **whats; /* (world_size): of `ranks` */
    local_messages messages;
    local_hub *subs; /* of sub-groups: a list by `next` */
    local_hub *next;
    int number; /* of the sub-group */
};

status local_hub_create(int world_size, local_hub **out)
{
    ASSERT(world_size >= 1);
    size_t n = (size_t)world_size;
    local_hub *hub = calloc(1, sizeof *hub);
    if (hub == NULL)
        return FAIL(STATUS_NO_MEMORY, "a hub of %d threads", world_size);
    pthread_cond_init(&hub->changed, NULL);
    pthread_mutex_init(&hub->lock, NULL);
    hub->world_size = world_size;
    hub->ranks = calloc(n, sizeof *hub->ranks);
    hub->whats = calloc(n, sizeof *hub->whats);
    if (hub->ranks == NULL || hub->whats == NULL) {
        local_hub_destroy(hub);
        return FAIL(STATUS_NO_MEMORY, "a hub of %d threads", world_size);
    }
    for (size_t rank = 0; rank < n; rank++)
        hub->whats[rank] = &hub->ranks[rank].what;
    *out = hub;
    return STATUS_OK;
}

void local_hub_destroy(local_hub *hub)
{
    if (hub == NULL)
        return;
    while (hub->subs != NULL) {
        local_hub *sub = hub->subs;
        hub->subs = sub->next;
        local_hub_destroy(sub);
    }
    pthread_cond_destroy(&hub->changed);
    pthread_mutex_destroy(&hub->lock);
    free(hub->ranks);
    free(hub->whats);
    local_messages_free(&hub->messages);
    free(hub);
}

status local_hub_sub(local_hub *hub, int number, int world_size, local_hub **out)
{
    status st = STATUS_OK;
    pthread_mutex_lock(&hub->lock);
    local_hub *sub = hub->subs;
    while (sub != NULL && sub->number != number)
        sub = sub->next;
    if (sub == NULL) {
        st = local_hub_create(world_size, &sub);
        if (st == STATUS_OK) {
            sub->number = number;
            sub->next = hub->subs;
            hub->subs = sub;
        }
    } else if (sub->world_size != world_size) {
        st = FAIL(STATUS_INVALID, "sub-group %d has %d ranks for others, not %d", number,
                  sub->world_size, world_size);
    }
    pthread_mutex_unlock(&hub->lock);
    if (st == STATUS_OK)
        *out = sub;
    return st;
}

int local_hub_world_size(const local_hub *hub)
{
    return hub->world_size;
}

/* The lock is held. False at the deadline. */
static bool await_change(local_hub *hub, int64_t deadline_ns)
{
    return clock_await(&hub->changed, &hub->lock, deadline_ns);
}

/* The lock is held. This rank takes what has come for it; returns whether anything had. */
static status take_messages(local_hub *hub, int rank, bool *moved)
{
    status st = local_messages_move(&hub->messages, rank, &hub->lock, moved);
    if (*moved)
        pthread_cond_broadcast(&hub->changed);
    return st;
}

/* A rank whose count is less, first of all one that has closed its group; else one whose data is
 * not to be used; -1: none. */
static int find_late(const local_hub *hub, local_count which, uint64_t want)
{
    int late = -1, failed = -1;
    for (int rank = hub->world_size - 1; rank >= 0; rank--) {
        const local_rank *r = &hub->ranks[rank];
        if (r->counts[which] < want && (late < 0 || r->left || !hub->ranks[late].left))
            late = rank;
        if (which == BEGUN && r->failed)
            failed = rank;
    }
    return late >= 0 ? late : failed;
}

/* The lock is held. Returns when every rank's count is at least this one's. */
static status await_all(local_hub *hub, int self, local_count which, int64_t deadline_ns)
{
    int64_t start_ns = clock_now_ns();
    uint64_t want = hub->ranks[self].counts[which];
    bool moved, in_time = true;
    for (;;) {
        if (hub->ranks[self].left)
            return FAIL(STATUS_PEER, "the group was aborted");
        int late = find_late(hub, which, want);
        if (late < 0)
            return STATUS_OK;
        TRY(take_messages(hub, self, &moved));
        if (moved)
            continue;
        if (hub->ranks[late].left)
            return first_cause_closed(NULL, late);
        if (which == BEGUN && hub->ranks[late].failed)
            return FAIL(STATUS_PEER, "rank %d has given up, as a collective has failed there",
                        late);
        if (!in_time)
            return FAIL(STATUS_TIMEOUT,
                        "waited %.1f s for rank %d, which has come to %" PRIu64 " of %" PRIu64
                        " collectives",
                        clock_seconds(clock_now_ns() - start_ns), late,
                        hub->ranks[late].counts[which], want);
        in_time = await_change(hub, deadline_ns);
    }
}

/* The lock is held. This rank's collective has failed; returns when nobody uses its data. */
static void take_back(local_hub *hub, local_rank *self)
{
    int64_t deadline_ns = clock_deadline_ns(DROP_MS);
    self->failed = true;
    pthread_cond_broadcast(&hub->changed);
    for (int rank = 0; rank < hub->world_size;)
        if (!hub->ranks[rank].uses)
            rank++;
        else if (!await_change(hub, deadline_ns))
            break;
}

status local_hub_begin(local_hub *hub, int rank, const collective *c, int64_t deadline_ns,
                       const collective *const **all)
{
    local_rank *self = &hub->ranks[rank];
    pthread_mutex_lock(&hub->lock);
    self->what = *c;
    self->counts[BEGUN]++;
    pthread_cond_broadcast(&hub->changed);
    status st = await_all(hub, rank, BEGUN, deadline_ns);
    self->uses = st == STATUS_OK;
    if (st != STATUS_OK)
        take_back(hub, self);
    pthread_mutex_unlock(&hub->lock);
    *all = hub->whats;
    return st;
}

status local_hub_end(local_hub *hub, int rank, int64_t deadline_ns)
{
    local_rank *self = &hub->ranks[rank];
    pthread_mutex_lock(&hub->lock);
    self->uses = false;
    self->counts[ENDED]++;
    pthread_cond_broadcast(&hub->changed);
    status st = await_all(hub, rank, ENDED, deadline_ns);
    if (st != STATUS_OK)
        take_back(hub, self);
    pthread_mutex_unlock(&hub->lock);
    return st;
}

void local_hub_refuse(local_hub *hub, int rank)
{
    pthread_mutex_lock(&hub->lock);
    hub->ranks[rank].uses = false;
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
}

status local_hub_start(local_hub *hub, int rank, const collective *c, local_message **out)
{
    pthread_mutex_lock(&hub->lock);
    status st = local_messages_add(&hub->messages, rank, c, out);
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
    return st;
}

/* The lock is held. */
static status await_message(local_hub *hub, const local_message *m, int64_t deadline_ns)
{
    int peer = m->what.root;
    bool sends = m->what.kind == COLLECTIVE_SEND, moved, in_time = true;
    int64_t start_ns = clock_now_ns();
    for (;;) {
        TRY(take_messages(hub, m->rank, &moved));
        if (m->state == LOCAL_DONE)
            return STATUS_OK;
        if (moved) /* another may have come meanwhile */
            continue;
        if (m->state == LOCAL_WAITS && hub->ranks[m->rank].left)
            return FAIL(STATUS_PEER, "the group was aborted");
        if (m->state == LOCAL_REFUSED)
            return FAIL(STATUS_INVALID, "rank %d %s another count or type than %zu elements of %s",
                        peer, sends ? "receives" : "sends", m->what.count,
                        dtype_name(m->what.type));
        if (m->state == LOCAL_WAITS && hub->ranks[peer].left)
            return first_cause_closed(NULL, peer);
        if (m->state == LOCAL_WAITS && !in_time)
            return FAIL(STATUS_TIMEOUT, "waited %.1f s for rank %d to %s",
                        clock_seconds(clock_now_ns() - start_ns), peer, sends ? "receive" : "send");
        in_time = await_change(hub, deadline_ns);
    }
}

status local_hub_finish(local_hub *hub, local_message *message, int64_t deadline_ns)
{
    if (message == NULL)
        return STATUS_OK;
    pthread_mutex_lock(&hub->lock);
    status st = await_message(hub, message, deadline_ns);
    int64_t drop_ns = clock_deadline_ns(DROP_MS);
    while (message->state == LOCAL_MOVES && await_change(hub, drop_ns)) {
    } /* another message was refused meanwhile, and this one's receiver copies */
    local_messages_drop(&hub->messages, message);
    pthread_mutex_unlock(&hub->lock);
    return st;
}

void local_hub_drop(local_hub *hub, local_message *message)
{
    if (message == NULL)
        return;
    int64_t deadline_ns = clock_deadline_ns(DROP_MS);
    pthread_mutex_lock(&hub->lock);
    while (message->state == LOCAL_MOVES && await_change(hub, deadline_ns)) {
    }
    local_messages_drop(&hub->messages, message);
    pthread_mutex_unlock(&hub->lock);
}

void local_hub_leave(local_hub *hub, int rank)
{
    pthread_mutex_lock(&hub->lock);
    hub->ranks[rank].left = true;
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
}
