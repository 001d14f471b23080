/* Collectives among threads of one process: --mode=dp's.
 *
 * All happens in wait(), between local_hub_begin and local_hub_end: every thread then sees the
 * others' arrays. In all_reduce each rank reduces one part of the elements, and writes it into all
 * ranks' arrays. In all others who takes reads from those that give (dist/collective/collective.h):
 * in reduce the root does all the work, as a parameter server does. Reductions go in rank order.
 */
#include "dist/backends/local/backend_local.h"

#include "base/clock.h"
#include "dist/collective/collective.h"
#include "dist/collective/process_group_ops.h"
#include "dist/health/first_cause.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Sends and receives between the threads of one process: what is offered, and what is wanted. All
 * calls with the hub's lock held. */

typedef enum local_message_state {
    LOCAL_WAITS,
    LOCAL_MOVES, /* the receiver copies, without the lock */
    LOCAL_DONE,
    LOCAL_REFUSED, /* count or type differ */
} local_message_state;

/* A send or recv under way. */
typedef struct local_message {
    struct local_message *next; /* on its list */
    collective what;
    int rank; /* whose it is; what.root is the other one */
    local_message_state state;
    bool is_kept;         /* a send that is done for its sender: the list's own */
    unsigned char data[]; /* what such a one sends */
} local_message;

/* Oldest first. */
typedef struct local_messages {
    local_message *sends, *recvs;
} local_messages;

static size_t bytes_of(const collective *c)
{
    return c->count * dtype_size(c->type);
}

static local_message **list_of(local_messages *m, const local_message *message)
{
    return message->what.kind == COLLECTIVE_SEND ? &m->sends : &m->recvs;
}

/* Lists a send or recv. *out: to be waited for and given to local_messages_drop; NULL: it is done
 * already. */
static status local_messages_add(local_messages *m, int rank, const collective *c,
                                 local_message **out)
{
    bool is_kept = c->kind == COLLECTIVE_SEND && bytes_of(c) <= LOCAL_KEPT_BYTES;
    size_t kept_bytes = is_kept ? bytes_of(c) : 0;
    local_message *message = malloc(sizeof *message + kept_bytes);
    if (message == NULL)
        return FAIL(STATUS_NO_MEMORY, "a message of %zu bytes", bytes_of(c));
    *message = (local_message){.what = *c, .rank = rank, .is_kept = is_kept};
    if (kept_bytes > 0) {
        memcpy(message->data, c->in, kept_bytes);
        message->what.in = message->data;
    }
    local_message **end = list_of(m, message);
    while (*end != NULL)
        end = &(*end)->next;
    *end = message;
    *out = is_kept ? NULL : message;
    return STATUS_OK;
}

/* Takes a message off its list and frees it. */
static void local_messages_drop(local_messages *m, local_message *message)
{
    local_message **at = list_of(m, message);
    while (*at != message)
        at = &(*at)->next;
    *at = message->next;
    free(message);
}

static local_message *find_send(const local_messages *m, const local_message *recv)
{
    local_message *s = m->sends;
    while (s != NULL && (s->state != LOCAL_WAITS || s->rank != recv->what.root ||
                         s->what.root != recv->rank || s->what.tag != recv->what.tag))
        s = s->next;
    return s;
}

static status refuse(local_message *sent, local_message *recv)
{
    sent->state = recv->state = LOCAL_REFUSED;
    return FAIL(STATUS_INVALID,
                "rank %d sends %zu elements of %s, rank %d receives %zu of %s: count and type are "
                "to be the same",
                sent->rank, sent->what.count, dtype_name(sent->what.type), recv->rank,
                recv->what.count, dtype_name(recv->what.type));
}

/* Does every recv of `rank` whose send is there; the lock is free while data is copied. *moved: any
 * was. STATUS_INVALID if count or type differ. */
static status local_messages_move(local_messages *m, int rank, pthread_mutex_t *lock, bool *moved)
{
    *moved = false;
    for (local_message *recv = m->recvs; recv != NULL; recv = recv->next) {
        if (recv->rank != rank || recv->state != LOCAL_WAITS)
            continue;
        local_message *sent = find_send(m, recv);
        if (sent == NULL)
            continue;
        *moved = true;
        if (sent->what.count != recv->what.count || sent->what.type != recv->what.type)
            return refuse(sent, recv);
        sent->state = LOCAL_MOVES; /* nobody frees either meanwhile */
        recv->state = LOCAL_MOVES;
        pthread_mutex_unlock(lock);
        memcpy(recv->what.out, sent->what.in, bytes_of(&recv->what));
        pthread_mutex_lock(lock);
        sent->state = LOCAL_DONE;
        recv->state = LOCAL_DONE;
        if (sent->is_kept)
            local_messages_drop(m, sent);
    }
    return STATUS_OK;
}

/* Frees what nobody has received. */
static void local_messages_free(local_messages *m)
{
    while (m->sends != NULL)
        local_messages_drop(m, m->sends);
    while (m->recvs != NULL)
        local_messages_drop(m, m->recvs);
}

/* The hub. All waits end by the deadline: STATUS_TIMEOUT with the rank that is missing; at once
 * with STATUS_PEER if it has closed its group, or one of its collectives has failed. After a
 * failure too, nobody touches this rank's data: that is waited for, for 10 s at most. */

/* A collective has two counts per rank: how many it has begun, and how many it has ended. A rank
 * begins the next one only after all have ended the last. So what the ranks came with stays in
 * place while anybody reads it, and a rank that closes its group leaves nobody waiting.
 *
 * A rank whose collective has failed takes its data back: nobody begins to use it from then on, and
 * the rank waits for those that have begun.
 *
 * A message is on one list of the hub until its receiver has copied it. Whoever waits, for
 * whatever, first takes what has come for it: so two ranks that wait for different messages of each
 * other do not wait for ever.
 */

enum { DROP_MS = 10000 }; /* longer than anybody copies */

typedef enum local_count { BEGUN, ENDED, COUNTS } local_count;

typedef struct local_rank {
    uint64_t counts[COUNTS]; /* collectives begun and ended */
    collective what;         /* the latest begun */
    bool uses;               /* what the others came with */
    bool failed;             /* nobody begins to use what it came with */
    bool left;
} local_rank;

struct local_hub {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    int world_size;
    local_rank *ranks;        /* (world_size) */
    const collective **whats; /* (world_size): of `ranks` */
    local_messages messages;
    local_hub *subs; /* the sub-groups' hubs: a list by `next` */
    local_hub *next;
    int number; /* the sub-group's */
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

/* Comes to this rank's next collective with `c` and waits until all have come to theirs: (*all)[r]
 * is rank r's, until local_hub_end. */
static status local_hub_begin(local_hub *hub, int rank, const collective *c, int64_t deadline_ns,
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

/* This rank touches nobody's data any more; returns when nobody touches its own. */
static status local_hub_end(local_hub *hub, int rank, int64_t deadline_ns)
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

/* Instead: the ranks came with different things, and none of them touches any data. */
static void local_hub_refuse(local_hub *hub, int rank)
{
    pthread_mutex_lock(&hub->lock);
    hub->ranks[rank].uses = false;
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
}

/* Starts a send or recv, and waits for one: waiting moves all messages of this rank on, as the
 * waits above do. A send that fits LOCAL_KEPT_BYTES is done at once: *out is NULL. Else it is done
 * when the receiver, in a wait of its own, has copied the data. STATUS_INVALID on both sides that
 * still wait if count or type differ. local_hub_finish consumes the message, which may be NULL. */
static status local_hub_start(local_hub *hub, int rank, const collective *c, local_message **out)
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

static status local_hub_finish(local_hub *hub, local_message *message, int64_t deadline_ns)
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

/* Forgets a message that nobody will wait for. */
static void local_hub_drop(local_hub *hub, local_message *message)
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

/* This rank closes its group. */
static void local_hub_leave(local_hub *hub, int rank)
{
    pthread_mutex_lock(&hub->lock);
    hub->ranks[rank].left = true;
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
}

typedef struct local_work {
    struct local_work *next;
    collective what;
    local_message *message; /* a send or recv under way; NULL: it is done */
    void *copy;             /* what `in` held, or NULL */
} local_work;

typedef struct local_group {
    local_hub *hub;
    int rank, world_size;
    const void **ins; /* (world_size) */
    void **outs;      /* (world_size) */

    pthread_mutex_t lock; /* guards the list: launches may come from another thread than waits */
    local_work *first, *last; /* launched and not waited for */
} local_group;

/* All must have come with the same. */
static status compare(const local_group *g, const collective *const *all)
{
    const collective *c = all[g->rank];
    for (int rank = 0; rank < g->world_size; rank++) {
        const collective *other = all[rank];
        bool same_scale = !(other->prescale < c->prescale || other->prescale > c->prescale);
        if (other->kind != c->kind || other->type != c->type || other->count != c->count ||
            other->op != c->op || other->root != c->root || !same_scale)
            return FAIL(STATUS_INVALID,
                        "rank %d issued another collective: %s of %zu elements, but this rank "
                        "issued %s of %zu, or op, type, root or prescale differ",
                        rank, collective_kind_name(other->kind), other->count,
                        collective_kind_name(c->kind), c->count);
    }
    return STATUS_OK;
}

/* This rank's part of all arrays. */
static void all_reduce(local_group *g, const collective *const *all)
{
    const collective *c = all[g->rank];
    exchange_part part = exchange_part_of(c, c->count, g->rank, g->world_size);
    size_t begin_bytes = part.begin * dtype_size(c->type);
    for (int i = 0; i < g->world_size; i++) {
        g->ins[i] = (const unsigned char *)all[i]->in + begin_bytes;
        g->outs[i] = (unsigned char *)all[i]->out + begin_bytes;
    }
    reduce_parts parts = {g->ins, g->world_size, g->outs, g->world_size};
    if (part.begin < part.end)
        reduce_into(c->type, c->op, c->prescale, &parts, part.end - part.begin);
}

static void take(local_group *g, const collective *const *all)
{
    const collective *c = all[g->rank];
    size_t at_bytes = exchange_row(c, g->rank) * c->count * dtype_size(c->type);
    for (int i = 0; i < g->world_size; i++)
        g->ins[i] = exchange_gives(c, i) ? (const unsigned char *)all[i]->in + at_bytes : NULL;
    if (exchange_takes(c, g->rank))
        exchange_take(c, g->rank, g->world_size, g->ins, 0, c->count);
}

static status together(local_group *g, const collective *c, int64_t deadline_ns)
{
    const collective *const *all = NULL;
    TRY(local_hub_begin(g->hub, g->rank, c, deadline_ns, &all));
    status st = compare(g, all);
    if (st != STATUS_OK) {
        local_hub_refuse(g->hub, g->rank);
        return st;
    }
    if (c->kind == COLLECTIVE_ALL_REDUCE)
        all_reduce(g, all);
    else
        take(g, all);
    return local_hub_end(g->hub, g->rank, deadline_ns);
}

static void free_work(local_work *w)
{
    free(w->copy);
    free(w);
}

/* In place, a rank overwrites rows of an all_to_all that others have not read: they read a copy. */
static status copy_rows(const local_group *g, local_work *w)
{
    size_t size_bytes = collective_in_bytes(&w->what, g->rank, g->world_size);
    w->copy = malloc(size_bytes + 1);
    if (w->copy == NULL)
        return FAIL(STATUS_NO_MEMORY, "a copy of %zu bytes", size_bytes);
    memcpy(w->copy, w->what.in, size_bytes);
    w->what.in = w->copy;
    return STATUS_OK;
}

static status local_launch(void *self, const collective *c, device_stream *stream, void **out_work)
{
    (void)stream;
    local_group *g = self;
    status st = STATUS_OK;
    local_work *w = calloc(1, sizeof *w);
    if (w == NULL)
        return FAIL(STATUS_NO_MEMORY, "a work of %zu bytes", sizeof *w);
    w->what = *c;
    if (collective_is_send_or_recv(c->kind))
        st = local_hub_start(g->hub, g->rank, c, &w->message);
    else if (c->kind == COLLECTIVE_ALL_TO_ALL && c->in == c->out && c->count > 0)
        st = copy_rows(g, w);
    if (st != STATUS_OK) {
        free_work(w);
        return st;
    }
    pthread_mutex_lock(&g->lock);
    *(g->first == NULL ? &g->first : &g->last->next) = w;
    g->last = w;
    pthread_mutex_unlock(&g->lock);
    *out_work = w;
    return STATUS_OK;
}

static status local_wait(void *self, void *work_, int64_t deadline_ns, int64_t *done_ns)
{
    local_group *g = self;
    local_work *w = work_;
    status st = collective_is_send_or_recv(w->what.kind)
                    ? local_hub_finish(g->hub, w->message, deadline_ns)
                    : together(g, &w->what, deadline_ns);
    *done_ns = clock_now_ns();
    pthread_mutex_lock(&g->lock);
    ASSERT(g->first == w);
    g->first = w->next;
    pthread_mutex_unlock(&g->lock);
    free_work(w);
    return st;
}

static void local_abort(void *self, const char *why)
{
    (void)why;
    local_group *g = self;
    local_hub_leave(g->hub, g->rank);
}

static void local_destroy(void *self)
{
    local_group *g = self;
    local_hub_leave(g->hub, g->rank);
    while (g->first != NULL) {
        local_work *w = g->first;
        g->first = w->next;
        local_hub_drop(g->hub, w->message);
        free_work(w);
    }
    pthread_mutex_destroy(&g->lock);
    free(g->ins);
    free(g->outs);
    free(g);
}

static status local_create(const group_setup *setup, void **self)
{
    const process_group_options *o = setup->options;
    size_t n = (size_t)o->world_size;
    if (o->hub->world_size != o->world_size)
        return FAIL(STATUS_INVALID, "a hub of %d threads for %d ranks", o->hub->world_size,
                    o->world_size);
    local_group *g = calloc(1, sizeof *g);
    const void **ins = calloc(n, sizeof *ins);
    void **outs = calloc(n, sizeof *outs);
    if (g == NULL || ins == NULL || outs == NULL) {
        free(g);
        free(ins);
        free(outs);
        return FAIL(STATUS_NO_MEMORY, "a local group of %zu ranks", n);
    }
    *g = (local_group){
        .hub = o->hub, .rank = o->rank, .world_size = o->world_size, .ins = ins, .outs = outs};
    pthread_mutex_init(&g->lock, NULL);
    *self = g;
    return STATUS_OK;
}

const process_group_ops local_ops = {
    .name = "local",
    .device_memory = false,
    .works_in_wait = true,
    .create = local_create,
    .launch = local_launch,
    .wait = local_wait,
    .abort = local_abort,
    .destroy = local_destroy,
    .traffic = collective_star_traffic,
};
