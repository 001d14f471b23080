#include "dist/store/store_connections.h"

#include "base/clock.h"
#include "base/log.h"
#include "dist/net/socket_address.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { GREETING_MS = 5000 }; /* a connection that has not greeted by then is closed */

enum { FIRST_BUCKETS = 64 }; /* of those who wait, by the hash of their key */

static void put(store_waiter **bucket, store_waiter *waiter)
{
    waiter->next = *bucket;
    waiter->link = bucket;
    if (*bucket != NULL)
        (*bucket)->link = &waiter->next;
    *bucket = waiter;
}

static status grow(store_waiters *waiters)
{
    size_t n = waiters->n_buckets > 0 ? waiters->n_buckets * 2 : FIRST_BUCKETS;
    store_waiter **buckets = calloc(n, sizeof *buckets);
    if (buckets == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu that wait", n);
    for (size_t b = 0; b < waiters->n_buckets; b++) {
        for (store_waiter *w = waiters->buckets[b], *next; w != NULL; w = next) {
            next = w->next;
            put(&buckets[w->hash & (n - 1)], w);
        }
    }
    free(waiters->buckets);
    waiters->buckets = buckets;
    waiters->n_buckets = n;
    return STATUS_OK;
}

/* Accepts one that waits for nothing. */
static void store_waiters_remove(store_waiters *waiters, store_waiter *waiter)
{
    if (waiter->link == NULL)
        return;
    *waiter->link = waiter->next;
    if (waiter->next != NULL)
        waiter->next->link = waiter->link;
    *waiter = (store_waiter){0};
    waiters->count--;
}

/* From now on it waits for a key of this hash, and for nothing else. STATUS_NO_MEMORY. */
static status store_waiters_add(store_waiters *waiters, store_waiter *waiter, uint64_t hash)
{
    store_waiters_remove(waiters, waiter);
    if (waiters->count >= waiters->n_buckets)
        TRY(grow(waiters));
    waiter->hash = hash;
    put(&waiters->buckets[hash & (waiters->n_buckets - 1)], waiter);
    waiters->count++;
    return STATUS_OK;
}

/* The first of a list of waiters, linked by `next`, that holds all who wait for a key of this hash.
 * The caller compares hash and key, and takes `next` before it removes the one that it has.
 */
static store_waiter *store_waiters_first(const store_waiters *waiters, uint64_t hash)
{
    return waiters->n_buckets > 0 ? waiters->buckets[hash & (waiters->n_buckets - 1)] : NULL;
}

/* Nobody may be waiting. */
static void store_waiters_close(store_waiters *waiters)
{
    ASSERT(waiters->count == 0);
    free(waiters->buckets);
    *waiters = (store_waiters){0};
}

void store_connections_init(store_connections *all, int queue, int port)
{
    *all = (store_connections){.queue = queue, .port = port, .due_ns = INT64_MAX};
    all->end = &all->first;
    all->end_to_run = &all->first_to_run;
}

void store_connections_close(store_connections *all)
{
    for (store_connection *c = all->first; c != NULL; c = c->next)
        store_connections_drop(all, c, "the store ends");
    store_connections_sweep(all);
    store_waiters_close(&all->waiters);
}

status store_connections_add(store_connections *all, int fd, store_connection **out)
{
    store_connection *c = calloc(1, sizeof *c);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (c == NULL || epoll_ctl(all->queue, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(c);
        close(fd);
        return FAIL(STATUS_NO_MEMORY, "a connection");
    }
    c->fd = fd;
    c->watched = event.events;
    c->moved_ns = clock_now_ns();
    c->greeting_deadline_ns = clock_deadline_ns(GREETING_MS);
    *all->end = c;
    all->end = &c->next;
    all->count++;
    all->ungreeted++;
    *out = c;
    return STATUS_OK;
}

static void note_held(store_connections *all, store_connection *c)
{
    size_t held = c->session.in.capacity + c->session.out.capacity;
    all->held_bytes += held - c->held_bytes;
    c->held_bytes = held;
}

/* A newer torch has such requests, say. */
static void tell_unknown(store_connections *all, const store_connection *c)
{
    char peer[SOCKET_ADDRESS_BYTES];
    const byte_buffer *in = &c->session.in;
    if (all->told_unknown || !c->session.greeted || in->size == 0 || store_wire_knows(in->data[0]))
        return;
    all->told_unknown = true;
    socket_address_peer(c->fd, peer);
    LOG_W("store on port %d: %s sent request number %d, which this program does not know (of a "
          "newer torch?): its connection is closed",
          all->port, peer, in->data[0]);
}

void store_connections_drop(store_connections *all, store_connection *c, const char *why)
{
    if (c->fd < 0)
        return;
    LOG_D("store on port %d: closed connection %d: %s", all->port, c->fd, why);
    tell_unknown(all, c);
    /* A process that was forked meanwhile may still have it, and epoll would go on with it. */
    (void)epoll_ctl(all->queue, EPOLL_CTL_DEL, c->fd, NULL);
    close(c->fd);
    c->fd = -1;
    all->closed++;
    if (!c->session.greeted)
        all->ungreeted--;
    if (c->is_pending)
        all->pending--;
    c->is_pending = false;
    store_waiters_remove(&all->waiters, &c->waiter);
    if (c->session.watches && all->watched != NULL)
        store_watched_release(all->watched, &c->session);
    store_session_close(&c->session);
    note_held(all, c);
}

/* A connection that was to run and was closed meanwhile does not. */
static void sweep_woken(store_connections *all)
{
    store_connection **link = &all->first_to_run;
    while (*link != NULL) {
        if ((*link)->fd < 0)
            *link = (*link)->next_to_run;
        else
            link = &(*link)->next_to_run;
    }
    all->end_to_run = link;
}

void store_connections_sweep(store_connections *all)
{
    int64_t now = clock_now_ns();
    for (store_connection *c = all->first; c != NULL && all->ungreeted > 0; c = c->next)
        if (c->fd >= 0 && !c->session.greeted && now >= c->greeting_deadline_ns)
            store_connections_drop(all, c, "no greeting came");
    if (all->closed == 0)
        return;
    sweep_woken(all);
    store_connection **link = &all->first;
    while (*link != NULL) {
        store_connection *c = *link;
        if (c->fd >= 0) {
            link = &c->next;
            continue;
        }
        *link = c->next;
        all->count--;
        free(c);
    }
    all->closed = 0;
    all->end = link;
}

store_connection *store_connections_oldest_ungreeted(const store_connections *all)
{
    for (store_connection *c = all->first; c != NULL && all->ungreeted > 0; c = c->next)
        if (c->fd >= 0 && !c->session.greeted)
            return c;
    return NULL;
}

static uint32_t events_of(const store_session *session)
{
    uint32_t events = session->out.size > 0 ? EPOLLOUT : 0;
    if (store_session_read_limit(session) > 0)
        events |= EPOLLIN;
    else if (!session->pending)
        events |= EPOLLRDHUP;
    return events;
}

void store_connections_watch(store_connections *all, store_connection *c)
{
    if (c->fd < 0)
        return;
    struct epoll_event event = {.events = events_of(&c->session), .data.ptr = c};
    if (c->is_pending != c->session.pending)
        all->pending = c->session.pending ? all->pending + 1 : all->pending - 1;
    c->is_pending = c->session.pending;
    if (event.events == c->watched)
        return;
    c->watched = event.events;
    int failed = epoll_ctl(all->queue, EPOLL_CTL_MOD, c->fd, &event);
    ASSERT(failed == 0);
}

status store_connections_settle(store_connections *all, store_connection *c,
                                const store_table *table)
{
    store_bytes key;
    note_held(all, c);
    store_waiters_remove(&all->waiters, &c->waiter);
    if (!store_session_awaits(&c->session, &key))
        return STATUS_OK;
    if (c->session.due_ns != 0 && c->session.due_ns < all->due_ns)
        all->due_ns = c->session.due_ns;
    return store_waiters_add(&all->waiters, &c->waiter, store_table_hash(table, key));
}

static void let_run(store_connections *all, store_connection *c)
{
    if (c->to_run)
        return;
    c->to_run = true;
    c->next_to_run = NULL;
    *all->end_to_run = c;
    all->end_to_run = &c->next_to_run;
}

static void let_waiter_run(store_connections *all, store_connection *c)
{
    store_waiters_remove(&all->waiters, &c->waiter);
    let_run(all, c);
}

void store_connections_wake(store_connections *all, const store_table *table, store_bytes key,
                            store_wake who)
{
    store_connection *only = NULL;
    if (all->waiters.count == 0)
        return;
    uint64_t hash = store_table_hash(table, key);
    store_waiter *next;
    for (store_waiter *w = store_waiters_first(&all->waiters, hash); w != NULL; w = next) {
        next = w->next;
        store_connection *c = (store_connection *)(void *)w;
        store_bytes awaited;
        if (w->hash != hash || !store_session_awaits(&c->session, &awaited) ||
            awaited.size != key.size || memcmp(awaited.data, key.data, key.size) != 0)
            continue;
        if (who == STORE_WAKE_ONE && c->session.awaited == 1)
            only = c; /* the last of the list has waited longest */
        else
            let_waiter_run(all, c);
    }
    if (only != NULL)
        let_waiter_run(all, only);
}

void store_connections_wake_watchers(store_connections *all, const store_table *table,
                                     store_bytes key)
{
    for (size_t i = 1; i < key.size; i++)
        if (key.data[i - 1] == '/')
            store_connections_wake(all, table, (store_bytes){.data = key.data, .size = i},
                                   STORE_WAKE_ALL);
    store_connections_wake(all, table, key, STORE_WAKE_ALL);
}

void store_connections_wake_due(store_connections *all)
{
    int64_t now = clock_now_ns();
    if (now < all->due_ns)
        return;
    all->due_ns = INT64_MAX;
    for (store_connection *c = all->first; c != NULL; c = c->next) {
        if (c->fd < 0 || c->session.due_ns == 0)
            continue;
        if (now >= c->session.due_ns)
            let_run(all, c);
        else if (c->session.due_ns < all->due_ns)
            all->due_ns = c->session.due_ns;
    }
}

store_connection *store_connections_next_to_run(store_connections *all)
{
    store_connection *c = all->first_to_run;
    if (c == NULL)
        return NULL;
    all->first_to_run = c->next_to_run;
    if (all->first_to_run == NULL)
        all->end_to_run = &all->first_to_run;
    c->to_run = false;
    return c;
}

bool store_connections_shed_one(store_connections *all)
{
    store_connection *found = store_connections_oldest_ungreeted(all);
    const char *why = "too many connections, and it has not greeted";
    if (found == NULL) {
        for (store_connection *c = all->first; c != NULL; c = c->next)
            if (c->fd >= 0 && !c->wrote && (found == NULL || c->moved_ns < found->moved_ns))
                found = c;
        why = "too many connections, and it has never set a key";
    }
    if (found != NULL)
        store_connections_drop(all, found, why);
    return found != NULL;
}

void store_connections_shed_bytes(store_connections *all, size_t limit_bytes)
{
    while (all->held_bytes > limit_bytes) {
        store_connection *found = NULL;
        for (store_connection *c = all->first; c != NULL; c = c->next) {
            /* Whoever holds most holds more than a share: there is always one. */
            if (c->fd < 0 || c->held_bytes <= limit_bytes / all->count)
                continue;
            if (found == NULL || c->wrote < found->wrote ||
                (c->wrote == found->wrote && c->moved_ns < found->moved_ns))
                found = c;
        }
        ASSERT(found != NULL);
        store_connections_drop(all, found, "it holds most of the memory for all connections");
    }
}
