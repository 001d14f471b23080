/* A collective has two counts per rank: how many it has begun, and how many it has ended. A rank
 * begins the next one only after all have ended the last. So what the ranks came with stays in
 * place while anybody reads it, and a rank that closes its group leaves nobody waiting.
 *
 * A message lies in the one place that its sender and receiver have for each other: offered, then
 * taken or refused. The sender waits, so its data needs no copy in between.
 */
#include "dist/backends/local/local_hub.h"

#include "base/clock.h"
#include "dist/health/first_cause.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct local_rank {
    uint64_t begun, ended; /* collectives */
    collective what;       /* of the latest begun */
    bool left;
} local_rank;

typedef struct local_message {
    const collective *offer; /* NULL: none */
    bool is_taking;          /* the receiver copies */
    bool refused;
    uint64_t offered, taken; /* messages so far */
} local_message;

struct local_hub {
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    int world_size;
    local_rank *ranks;        /* (world_size) */
    const collective **whats; /* (world_size): of `ranks` */
    local_message *messages;  /* (world_size, world_size): from, to */
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
    hub->messages = calloc(n * n, sizeof *hub->messages);
    if (hub->ranks == NULL || hub->whats == NULL || hub->messages == NULL) {
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
    pthread_cond_destroy(&hub->changed);
    pthread_mutex_destroy(&hub->lock);
    free(hub->ranks);
    free(hub->whats);
    free(hub->messages);
    free(hub);
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

/* A count that every rank has. */
typedef uint64_t count_fn(const local_rank *rank);

static uint64_t begun(const local_rank *rank)
{
    return rank->begun;
}

static uint64_t ended(const local_rank *rank)
{
    return rank->ended;
}

/* The lock is held. Returns when every rank's count is at least `want`. */
static status await_all(local_hub *hub, count_fn *count, uint64_t want, int64_t deadline_ns)
{
    int64_t start_ns = clock_now_ns();
    for (int peer = 0; peer < hub->world_size;) {
        const local_rank *other = &hub->ranks[peer];
        if (count(other) >= want) {
            peer++;
            continue;
        }
        for (int rank = 0; rank < hub->world_size; rank++)
            if (hub->ranks[rank].left && count(&hub->ranks[rank]) < want)
                return first_cause_closed(NULL, rank);
        if (!await_change(hub, deadline_ns) && count(other) < want)
            return FAIL(STATUS_TIMEOUT,
                        "waited %.1f s for rank %d, which has come to %" PRIu64 " of %" PRIu64
                        " collectives",
                        clock_seconds(clock_now_ns() - start_ns), peer, count(other), want);
    }
    return STATUS_OK;
}

status local_hub_begin(local_hub *hub, int rank, const collective *c, int64_t deadline_ns,
                       const collective *const **all)
{
    local_rank *self = &hub->ranks[rank];
    pthread_mutex_lock(&hub->lock);
    self->what = *c;
    self->begun++;
    pthread_cond_broadcast(&hub->changed);
    status st = await_all(hub, begun, self->begun, deadline_ns);
    pthread_mutex_unlock(&hub->lock);
    *all = hub->whats;
    return st;
}

status local_hub_end(local_hub *hub, int rank, int64_t deadline_ns)
{
    local_rank *self = &hub->ranks[rank];
    pthread_mutex_lock(&hub->lock);
    self->ended++;
    pthread_cond_broadcast(&hub->changed);
    status st = await_all(hub, ended, self->ended, deadline_ns);
    pthread_mutex_unlock(&hub->lock);
    return st;
}

static local_message *message_of(local_hub *hub, int from, int to)
{
    return &hub->messages[(size_t)from * (size_t)hub->world_size + (size_t)to];
}

static status fail_message(const char *what, int peer, int64_t start_ns)
{
    return FAIL(STATUS_TIMEOUT, "waited %.1f s for rank %d to %s",
                clock_seconds(clock_now_ns() - start_ns), peer, what);
}

static status refuse(const collective *sent, int from, const collective *wanted, int to)
{
    return FAIL(STATUS_INVALID,
                "rank %d sends %zu elements of %zu bytes, rank %d receives %zu of %zu", from,
                sent->count, dtype_size(sent->type), to, wanted->count, dtype_size(wanted->type));
}

status local_hub_send(local_hub *hub, int rank, const collective *c, int64_t deadline_ns)
{
    int peer = c->root;
    local_message *m = message_of(hub, rank, peer);
    int64_t start_ns = clock_now_ns();
    status st = STATUS_OK;
    pthread_mutex_lock(&hub->lock);
    m->offer = c;
    uint64_t number = ++m->offered;
    pthread_cond_broadcast(&hub->changed);
    while (st == STATUS_OK && m->taken < number && !m->refused) {
        bool in_time = true;
        if (hub->ranks[peer].left && !m->is_taking)
            st = first_cause_closed(NULL, peer);
        else
            in_time = await_change(hub, deadline_ns);
        if (!in_time && m->taken < number && !m->is_taking)
            st = fail_message("receive", peer, start_ns);
    }
    if (st == STATUS_OK && m->refused)
        st = FAIL(STATUS_INVALID, "rank %d receives another count or type than %zu elements", peer,
                  c->count);
    m->offer = NULL;
    pthread_mutex_unlock(&hub->lock);
    return st;
}

status local_hub_receive(local_hub *hub, int rank, const collective *c, int64_t deadline_ns)
{
    int peer = c->root;
    local_message *m = message_of(hub, peer, rank);
    int64_t start_ns = clock_now_ns();
    status st = STATUS_OK;
    pthread_mutex_lock(&hub->lock);
    while (st == STATUS_OK && m->offer == NULL) {
        if (hub->ranks[peer].left)
            st = first_cause_closed(NULL, peer);
        else if (!await_change(hub, deadline_ns) && m->offer == NULL)
            st = fail_message("send", peer, start_ns);
    }
    const collective *offer = m->offer;
    if (st == STATUS_OK && (offer->count != c->count || offer->type != c->type)) {
        m->refused = true;
        st = refuse(offer, peer, c, rank);
    }
    if (st == STATUS_OK) {
        m->is_taking = true;
        pthread_mutex_unlock(&hub->lock);
        memcpy(c->out, offer->in, c->count * dtype_size(c->type));
        pthread_mutex_lock(&hub->lock);
        m->is_taking = false;
        m->offer = NULL;
        m->taken++;
    }
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
    return st;
}

void local_hub_leave(local_hub *hub, int rank)
{
    pthread_mutex_lock(&hub->lock);
    hub->ranks[rank].left = true;
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
}
