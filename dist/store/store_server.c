#include "dist/store/store.h"

#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/status.h"
#include "base/thread.h"
#include "dist/net/socket.h"
#include "dist/store/store_session.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    WAIT_BUCKETS = 1 << 12, /* 16 of 65,536 connections in each */
    GREETING_MS = 5000,     /* a connection that has not greeted by then is closed */
    MAX_UNGREETED = 64,     /* beyond, the oldest is closed */
    ACCEPT_BATCH = 64,      /* connections per turn, so that the others get theirs */
    ACCEPT_PAUSE_MS = 100,
    TURN_BYTES = 1 << 20,  /* touched for one connection per turn, so that the others get theirs */
    READ_BYTES = 64 << 10, /* per system call */
    STORE_BYTES = 1 << 30, /* all keys and values together */
    QUEUE_BYTES = 256 << 20,  /* all queues together */
    BUFFER_BYTES = 256 << 20, /* what all connections have sent in part, or have not read yet */
    WATCHED_BYTES = 32 << 20, /* all watched keys together: an answer has at most as much */
    AUTHOR_BYTES = 16 << 20,  /* who has set which key that is kept */
    SPARE_DESCRIPTORS = 512,  /* at most, and a quarter of all, for the rest of the process */
    FORGET_BATCH = 1 << 16,
    EVENT_BATCH = 256, /* taken in one look at the queue; the next look takes the others */
    FULL_TURNS = 100,  /* in a row; more are load, and no leftovers */
};

/* The connections of the store's server: who waits for what, what they hold, and which one is
 * closed if descriptors or buffers are short. */

typedef struct store_connection {
    TAILQ_ENTRY(store_connection) arrival, run;
    LIST_ENTRY(store_connection) waiter;
    bool waits;      /* for a key of this hash: it is in that bucket */
    bool to_run;     /* what it waits for has come: it is in that list */
    bool is_pending; /* as its session was at the end of its last turn */
    bool wrote;      /* it has set a key: it takes part in the job */
    bool kept;       /* it has set a key that outlives its process */
    uint64_t hash;
    int fd;           /* -1 once closed */
    uint32_t watched; /* what epoll looks for */
    uint32_t events;  /* what it reported this turn */
    int64_t greeting_deadline_ns;
    int64_t moved_ns; /* when bytes last came or went */
    size_t held_bytes;
    store_session session;
} store_connection;

typedef TAILQ_HEAD(connection_list, store_connection) connection_list;
typedef LIST_HEAD(wait_bucket, store_connection) wait_bucket;

/* The keys that outlive the processes that have set them: those of one prefix, each with who has
 * set it last. */
typedef struct store_kept {
    char *prefix;         /* with the first "/"; NULL: none is kept */
    store_table *authors; /* by key: an address as text */
} store_kept;

struct store_server {
    pthread_t thread;
    int listen_fd, port;
    char host[SOCKET_ADDRESS_BYTES];
    int wake_fd;
    atomic_int callers; /* other threads that call, or wait for the lock */

    pthread_mutex_t lock;  /* guards all below; the thread has it during a turn */
    pthread_cond_t called; /* there are no callers any more */
    bool stops;
    bool forgot; /* connections that epoll has reported before may be gone */
    store_kept kept;
    store_table *table, *queues;
    store_watched *watched;

    connection_list list;              /* in the order of their arrival */
    connection_list to_run;            /* in the order in which they were woken */
    size_t count, closed;              /* count: with those that are closed and not yet swept */
    size_t ungreeted, pending;         /* counts of open connections */
    size_t held_bytes;                 /* in all buffers */
    wait_bucket waiters[WAIT_BUCKETS]; /* by the hash of their key */
    size_t waiting;
    int64_t due_ns;      /* none that watches is to be answered before */
    bool logged_unknown; /* it was logged, once, that a request is unknown here */

    store_connection *running; /* whose requests are being answered */
    size_t max_connections;
    int full_turns;         /* in a row that had EVENT_BATCH events */
    bool logged;            /* it was logged, once, that connections cannot be taken */
    int64_t accept_from_ns; /* accepting pauses until then */
    int queue;              /* epoll: wake, listen, and the connections */
    bool listens;           /* the queue looks for connections */
    uint8_t read_bytes[READ_BYTES];
};

/* Accepts one that waits for nothing. */
static void end_wait(store_server *server, store_connection *c)
{
    if (!c->waits)
        return;
    LIST_REMOVE(c, waiter);
    c->waits = false;
    server->waiting--;
}

/* From now on it waits for a key of this hash, and for nothing else. */
static void begin_wait(store_server *server, store_connection *c, uint64_t hash)
{
    end_wait(server, c);
    LIST_INSERT_HEAD(&server->waiters[hash & (WAIT_BUCKETS - 1)], c, waiter);
    c->waits = true;
    c->hash = hash;
    server->waiting++;
}

/* Accepts one that is not to run. */
static void end_run(store_server *server, store_connection *c)
{
    if (c->to_run)
        TAILQ_REMOVE(&server->to_run, c, run);
    c->to_run = false;
}

static void note_held(store_server *server, store_connection *c)
{
    size_t held = c->session.in.capacity + c->session.out.capacity;
    server->held_bytes += held - c->held_bytes;
    c->held_bytes = held;
}

/* A request that no store of ours has, of a newer torch say, is logged as a warning, once: its
 * client may wait long for what it was to bring. */
static void log_unknown(store_server *server, const store_connection *c)
{
    char peer[SOCKET_ADDRESS_BYTES];
    const byte_buffer *in = &c->session.in;
    if (server->logged_unknown || !c->session.greeted || in->size == 0 ||
        store_session_knows(in->data[0]))
        return;
    server->logged_unknown = true;
    socket_address_peer(c->fd, peer);
    LOG_W("store on port %d: %s sent request number %d, which this program does not know (of a "
          "newer torch?): its connection is closed",
          server->port, peer, in->data[0]);
}

/* It stays in the list until the next sweep. Accepts one that is closed. */
static void connections_drop(store_server *server, store_connection *c, const char *why)
{
    if (c->fd < 0)
        return;
    LOG_D("store on port %d: closed connection %d: %s", server->port, c->fd, why);
    log_unknown(server, c);
    /* A process that was forked meanwhile may still have it, and epoll would go on with it. */
    (void)epoll_ctl(server->queue, EPOLL_CTL_DEL, c->fd, NULL);
    close(c->fd);
    c->fd = -1;
    server->closed++;
    if (!c->session.greeted)
        server->ungreeted--;
    if (c->is_pending)
        server->pending--;
    c->is_pending = false;
    end_wait(server, c);
    end_run(server, c);
    if (c->session.watches && server->watched != NULL)
        store_watched_release(server->watched, &c->session);
    store_session_close(&c->session);
    note_held(server, c);
}

/* Frees what is closed, after closing those whose greeting is overdue. */
static void connections_sweep(store_server *server)
{
    int64_t now = clock_now_ns();
    store_connection *next;
    for (store_connection *c = TAILQ_FIRST(&server->list); c != NULL && server->ungreeted > 0;
         c = TAILQ_NEXT(c, arrival))
        if (c->fd >= 0 && !c->session.greeted && now >= c->greeting_deadline_ns)
            connections_drop(server, c, "no greeting came");
    for (store_connection *c = TAILQ_FIRST(&server->list); c != NULL && server->closed > 0;
         c = next) {
        next = TAILQ_NEXT(c, arrival);
        if (c->fd >= 0)
            continue;
        TAILQ_REMOVE(&server->list, c, arrival);
        server->count--;
        server->closed--;
        free(c);
    }
}

static void connections_close(store_server *server)
{
    for (store_connection *c = TAILQ_FIRST(&server->list); c != NULL; c = TAILQ_NEXT(c, arrival))
        connections_drop(server, c, "the store ends");
    connections_sweep(server);
    ASSERT(server->waiting == 0);
}

/* Takes `fd` at once, also on failure, and watches it for requests: STATUS_NO_MEMORY. */
static status connections_add(store_server *server, int fd, store_connection **out)
{
    store_connection *c = calloc(1, sizeof *c);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (c == NULL || epoll_ctl(server->queue, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(c);
        close(fd);
        return FAIL(STATUS_NO_MEMORY, "a connection");
    }
    c->fd = fd;
    c->watched = event.events;
    c->moved_ns = clock_now_ns();
    c->greeting_deadline_ns = clock_deadline_ns(GREETING_MS);
    TAILQ_INSERT_TAIL(&server->list, c, arrival);
    server->count++;
    server->ungreeted++;
    *out = c;
    return STATUS_OK;
}

static store_connection *connections_oldest_ungreeted(const store_server *server)
{
    store_connection *c = server->ungreeted > 0 ? TAILQ_FIRST(&server->list) : NULL;
    while (c != NULL && (c->fd < 0 || c->session.greeted))
        c = TAILQ_NEXT(c, arrival);
    return c;
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

/* To be called at the end of a connection's turn: epoll looks for what its session can do next. */
static void connections_watch(store_server *server, store_connection *c)
{
    if (c->fd < 0)
        return;
    struct epoll_event event = {.events = events_of(&c->session), .data.ptr = c};
    if (c->is_pending != c->session.pending)
        server->pending = c->session.pending ? server->pending + 1 : server->pending - 1;
    c->is_pending = c->session.pending;
    if (event.events == c->watched)
        return;
    c->watched = event.events;
    int failed = epoll_ctl(server->queue, EPOLL_CTL_MOD, c->fd, &event);
    ASSERT(failed == 0);
}

/* To be called when a session has run: notes what it holds and waits for. */
static void connections_settle(store_server *server, store_connection *c)
{
    store_bytes key;
    note_held(server, c);
    end_wait(server, c);
    if (!store_session_awaits(&c->session, &key))
        return;
    if (c->session.due_ns != 0 && c->session.due_ns < server->due_ns)
        server->due_ns = c->session.due_ns;
    begin_wait(server, c, store_table_hash(server->table, key));
}

static void let_run(store_server *server, store_connection *c)
{
    end_wait(server, c);
    if (c->to_run)
        return;
    c->to_run = true;
    TAILQ_INSERT_TAIL(&server->to_run, c, run);
}

/* All that wait for the key are to run, or of those that wait for nothing else only one. */
static void connections_wake(store_server *server, store_bytes key, store_wake who)
{
    store_connection *only = NULL, *c, *next;
    if (server->waiting == 0)
        return;
    uint64_t hash = store_table_hash(server->table, key);
    for (c = LIST_FIRST(&server->waiters[hash & (WAIT_BUCKETS - 1)]); c != NULL; c = next) {
        store_bytes awaited;
        next = LIST_NEXT(c, waiter);
        if (c->hash != hash || !store_session_awaits(&c->session, &awaited) ||
            awaited.size != key.size || memcmp(awaited.data, key.data, key.size) != 0)
            continue;
        if (who == STORE_WAKE_ONE && c->session.awaited == 1)
            only = c; /* the last of the list has waited longest */
        else
            let_run(server, c);
    }
    if (only != NULL)
        let_run(server, only);
}

/* All that watch a prefix of the key are to run. */
static void connections_wake_watchers(store_server *server, store_bytes key)
{
    for (size_t i = 1; i < key.size; i++)
        if (key.data[i - 1] == '/')
            connections_wake(server, (store_bytes){.data = key.data, .size = i}, STORE_WAKE_ALL);
    connections_wake(server, key, STORE_WAKE_ALL);
}

/* All that have watched for long enough are to run. Looks at all, but only if one is due. */
static void connections_wake_due(store_server *server)
{
    int64_t now = clock_now_ns();
    if (now < server->due_ns)
        return;
    server->due_ns = INT64_MAX;
    for (store_connection *c = TAILQ_FIRST(&server->list); c != NULL; c = TAILQ_NEXT(c, arrival)) {
        if (c->fd < 0 || c->session.due_ns == 0)
            continue;
        if (now >= c->session.due_ns)
            let_run(server, c);
        else if (c->session.due_ns < server->due_ns)
            server->due_ns = c->session.due_ns;
    }
}

/* Closes one connection so that another has its descriptor: the oldest that has not greeted, else
 * of those that have never set a key the one that is idle longest. false: there is none of them. */
static bool connections_shed_one(store_server *server)
{
    store_connection *found = connections_oldest_ungreeted(server);
    const char *why = "too many connections, and it has not greeted";
    if (found == NULL) {
        for (store_connection *c = TAILQ_FIRST(&server->list); c != NULL;
             c = TAILQ_NEXT(c, arrival))
            if (c->fd >= 0 && !c->wrote && (found == NULL || c->moved_ns < found->moved_ns))
                found = c;
        why = "too many connections, and it has never set a key";
    }
    if (found != NULL)
        connections_drop(server, found, why);
    return found != NULL;
}

/* Closes connections until all buffers together hold `limit_bytes` at most: of those that hold more
 * than their share the one that is idle longest, and one that takes part in the job last. */
static void connections_shed_bytes(store_server *server, size_t limit_bytes)
{
    while (server->held_bytes > limit_bytes) {
        store_connection *found = NULL;
        for (store_connection *c = TAILQ_FIRST(&server->list); c != NULL;
             c = TAILQ_NEXT(c, arrival)) {
            /* Whoever holds most holds more than a share: there is always one. */
            if (c->fd < 0 || c->held_bytes <= limit_bytes / server->count)
                continue;
            if (found == NULL || c->wrote < found->wrote ||
                (c->wrote == found->wrote && c->moved_ns < found->moved_ns))
                found = c;
        }
        ASSERT(found != NULL);
        connections_drop(server, found, "it holds most of the memory for all connections");
    }
}

/* `prefix` is without the first "/"; "": no key is kept from now on. */
static status kept_choose(store_kept *kept, const char *prefix)
{
    char *copy = NULL;
    if (prefix[0] != '\0' && asprintf(&copy, "/%s", prefix) < 0)
        return FAIL(STATUS_NO_MEMORY, "a store's prefix");
    free(kept->prefix);
    kept->prefix = copy;
    return STATUS_OK;
}

static bool kept_has(const store_kept *kept, store_bytes key)
{
    size_t length = kept->prefix == NULL ? 0 : strlen(kept->prefix);
    return length > 0 && key.size >= length && memcmp(key.data, kept->prefix, length) == 0;
}

/* A key that is kept was set by the other end of a socket. STATUS_NO_MEMORY. */
static status kept_note(store_kept *kept, store_bytes key, int fd)
{
    char address[SOCKET_ADDRESS_BYTES];
    socket_address_peer(fd, address);
    store_bytes text = {.data = (const uint8_t *)address, .size = strlen(address) + 1};
    return store_table_set(kept->authors, key, text);
}

/* Who has set it last, "" if that is not known. The key is without the first "/"; `out` has
 * SOCKET_ADDRESS_BYTES. */
static void kept_author(const store_kept *kept, const char *key, char *out)
{
    char whole[STORE_KEY_BYTES];
    store_bytes address = {0};
    int length = snprintf(whole, sizeof whole, "/%s", key);
    store_bytes name = {.data = (const uint8_t *)whole, .size = (size_t)length};
    bool there = (size_t)length < sizeof whole && store_table_find(kept->authors, name, &address);
    snprintf(out, SOCKET_ADDRESS_BYTES, "%s", there ? (const char *)address.data : "");
}

/* Another thread's call: between two turns it has the server to itself. */
static void enter(store_server *server)
{
    atomic_fetch_add(&server->callers, 1);
    pthread_mutex_lock(&server->lock);
}

static void leave(store_server *server)
{
    eventfd_write(server->wake_fd, 1); /* the last touch is the unlock: it may end the server */
    if (atomic_fetch_sub(&server->callers, 1) == 1)
        pthread_cond_signal(&server->called);
    pthread_mutex_unlock(&server->lock);
}

/* Then a turn ends early. */
static bool is_called(store_server *server)
{
    return atomic_load_explicit(&server->callers, memory_order_relaxed) > 0;
}

static void on_set(void *ctx, store_bytes key, store_wake who)
{
    store_server *server = ctx;
    server->running->wrote = true;
    if (kept_has(&server->kept, key)) {
        server->running->kept = true;
        if (kept_note(&server->kept, key, server->running->fd) != STATUS_OK)
            LOG_D("store on port %d: %s", server->port, status_text());
    }
    connections_wake(server, key, who);
}

static void on_change(void *ctx, store_bytes key)
{
    store_server *server = ctx;
    connections_wake_watchers(server, key);
}

static status send_answers(store_connection *c)
{
    byte_buffer *out = &c->session.out;
    while (out->size > 0) {
        size_t sent;
        TRY(socket_send_some(c->fd, out->data, out->size, &sent));
        if (sent == 0)
            return STATUS_OK;
        byte_buffer_consume(out, sent);
        c->moved_ns = clock_now_ns();
    }
    return STATUS_OK;
}

static status run_session(store_server *server, store_connection *c, size_t *budget_bytes)
{
    bool greeted = c->session.greeted;
    const store_service service = {server->table, server->queues, on_set, server, server->watched};
    server->running = c;
    status st = store_session_run(&c->session, &service, budget_bytes);
    if (!greeted && c->session.greeted)
        server->ungreeted--;
    if (c->session.watches) /* an agent's */
        c->wrote = c->kept = true;
    if (st == STATUS_OK)
        st = send_answers(c);
    if (st == STATUS_OK)
        connections_settle(server, c);
    return st;
}

/* Takes what has come in, as far as the budget goes. */
static status read_requests(store_server *server, store_connection *c, size_t *budget_bytes)
{
    while (*budget_bytes > 0) {
        size_t limit = store_session_read_limit(&c->session), got;
        if (limit == 0)
            return STATUS_OK;
        if (limit > READ_BYTES)
            limit = READ_BYTES;
        TRY(socket_receive_some(c->fd, server->read_bytes, limit, &got));
        if (got == 0)
            return STATUS_OK;
        c->moved_ns = clock_now_ns();
        *budget_bytes -= got < *budget_bytes ? got : *budget_bytes;
        TRY(byte_buffer_append(&c->session.in, server->read_bytes, got));
        TRY(run_session(server, c, budget_bytes));
        if (got < limit)
            return STATUS_OK; /* that was all; epoll reports more */
    }
    return STATUS_OK;
}

/* If memory ran out (errno says so, but not of the store's own limits), what the connection wrote
 * may be lost, and others would wait for it: so all are closed. */
static void drop_failed(store_server *server, store_connection *failed, status st)
{
    bool all = st == STATUS_NO_MEMORY && errno == ENOMEM;
    if (all)
        LOG_W("store on port %d: closes all connections: %s", server->port, status_text());
    store_connection *c = all ? TAILQ_FIRST(&server->list) : NULL;
    for (; c != NULL; c = TAILQ_NEXT(c, arrival))
        if (c != failed)
            connections_drop(server, c, "the store is out of memory");
    connections_drop(server, failed, status_text());
}

/* A connection's turn: what epoll has reported, and what the last turn left. */
static void serve(store_server *server, store_connection *c)
{
    status st = STATUS_OK;
    size_t budget_bytes = TURN_BYTES;
    errno = 0;
    if ((c->events & POLLOUT) != 0)
        st = send_answers(c);
    if (st == STATUS_OK && c->session.pending)
        st = run_session(server, c, &budget_bytes);
    if (st == STATUS_OK && (c->events & (POLLIN | POLLHUP | POLLERR)) != 0)
        st = read_requests(server, c, &budget_bytes);
    /* Hung up, and with more after the waiting request than is worth reading. */
    if (st == STATUS_OK && (c->events & (POLLRDHUP | POLLHUP | POLLERR)) != 0 &&
        !c->session.pending && store_session_read_limit(&c->session) == 0)
        st = FAIL(STATUS_PEER, "the other side hung up");
    if (st != STATUS_OK)
        drop_failed(server, c, st);
    c->events = 0;
    connections_watch(server, c);
    connections_shed_bytes(server, BUFFER_BYTES);
}

/* Runs sessions whose key was set, as far as one budget for all goes. They may set keys that others
 * wait for: those run in the next turn. */
static void run_woken(store_server *server)
{
    size_t n = 0, budget_bytes = TURN_BYTES;
    for (store_connection *c = TAILQ_FIRST(&server->to_run); c != NULL; c = TAILQ_NEXT(c, run))
        n++;
    for (; n > 0 && budget_bytes > 0 && !is_called(server); n--) {
        store_connection *c = TAILQ_FIRST(&server->to_run);
        if (c == NULL)
            return;
        end_run(server, c);
        errno = 0;
        status st = run_session(server, c, &budget_bytes);
        if (st != STATUS_OK)
            drop_failed(server, c, st);
        connections_watch(server, c);
        connections_shed_bytes(server, BUFFER_BYTES);
    }
}

/* The greeting mostly comes with the connection: then it never counts as waiting. One that is about
 * to be closed may have greeted by now. */
static void add_connection(store_server *server, int fd)
{
    store_connection *c = NULL;
    if (connections_add(server, fd, &c) != STATUS_OK)
        return;
    c->events = POLLIN;
    serve(server, c);
    while (server->ungreeted > MAX_UNGREETED) {
        store_connection *oldest = connections_oldest_ungreeted(server);
        oldest->events = POLLIN;
        serve(server, oldest);
        if (oldest->fd >= 0 && !oldest->session.greeted)
            connections_drop(server, oldest, "too many connections have not greeted");
    }
}

/* Says once why connections cannot be taken, and tries again after a pause. A lack of descriptors
 * is named as such. */
static void pause_accepting(store_server *server, status st)
{
    log_level level = server->logged ? LOG_DEBUG : LOG_WARNING;
    if (st == STATUS_NO_MEMORY)
        log_line(level,
                 "store on port %d: %zu connections are open, and no more can be taken: %s; raise "
                 "the limit on open files (ulimit -n)",
                 server->port, server->count, status_text());
    else
        log_line(level, "store on port %d: cannot take a connection: %s", server->port,
                 status_text());
    server->logged = true;
    server->accept_from_ns = clock_deadline_ns(ACCEPT_PAUSE_MS);
}

/* accept() says that descriptors are short even if nobody waits. */
static status accept_one(store_server *server, int *fd)
{
    status st = server->count < server->max_connections
                    ? socket_accept(server->listen_fd, fd)
                    : FAIL(STATUS_NO_MEMORY, "at most %zu are kept", server->max_connections);
    struct pollfd queue = {.fd = server->listen_fd, .events = POLLIN};
    if (st != STATUS_NO_MEMORY || poll(&queue, 1, 0) > 0)
        return st;
    *fd = -1;
    return STATUS_OK;
}

static void accept_connections(store_server *server)
{
    for (int i = 0; i < ACCEPT_BATCH && !is_called(server); i++) {
        int fd = -1;
        status st = accept_one(server, &fd);
        if (st == STATUS_OK && fd < 0)
            return;
        if (st == STATUS_OK) {
            add_connection(server, fd);
        } else if (st == STATUS_NO_MEMORY && connections_shed_one(server)) {
            connections_sweep(server);
        } else {
            pause_accepting(server, st);
            return;
        }
    }
}

/* How long epoll may sleep: not at all if work is left, else to the next overdue greeting, the end
 * of the pause, of a lease, or of a watch. */
static int sleep_ms(const store_server *server)
{
    int64_t until = store_watched_due_ns(server->watched);
    if (!TAILQ_EMPTY(&server->to_run) || server->pending > 0)
        return 0;
    const store_connection *oldest = connections_oldest_ungreeted(server);
    if (oldest != NULL && oldest->greeting_deadline_ns < until)
        until = oldest->greeting_deadline_ns;
    if (server->due_ns < until)
        until = server->due_ns;
    if (server->accept_from_ns != 0 && server->accept_from_ns < until)
        until = server->accept_from_ns;
    return until == INT64_MAX ? -1 : clock_remaining_ms(until);
}

/* Looks for connections, but while accepting pauses. */
static void watch_listener(store_server *server)
{
    if (server->accept_from_ns != 0 && clock_passed(server->accept_from_ns))
        server->accept_from_ns = 0;
    bool listens = server->accept_from_ns == 0;
    struct epoll_event event = {.events = listens ? EPOLLIN : 0, .data.ptr = &server->listen_fd};
    if (listens == server->listens)
        return;
    int failed = epoll_ctl(server->queue, EPOLL_CTL_MOD, server->listen_fd, &event);
    ASSERT(failed == 0);
    server->listens = listens;
}

static void forget_keys(const store_kept *kept, store_table *table)
{
    for (store_iterator at = {0}; store_table_next(table, &at);)
        if (!kept_has(kept, at.key))
            (void)store_table_delete(table, at.key);
}

static void forget(store_server *server)
{
    int fd = -1;
    for (int i = 0; i < FORGET_BATCH; i++) {
        if (socket_accept(server->listen_fd, &fd) != STATUS_OK || fd < 0)
            break;
        close(fd); /* nothing of it was read yet */
    }
    for (store_connection *c = TAILQ_FIRST(&server->list); c != NULL; c = TAILQ_NEXT(c, arrival))
        if (!c->kept)
            connections_drop(server, c, "its process has ended");
    connections_sweep(server);
    forget_keys(&server->kept, server->table);
    forget_keys(&server->kept, server->queues);
    forget_keys(&server->kept, server->kept.authors);
}

/* One turn for every connection that has something to do. A caller ends it: those left out are
 * reported again. */
static void take_turns(store_server *server, const struct epoll_event *events, int n)
{
    bool arrivals = false;
    for (int i = 0; i < n; i++) {
        store_connection *c = events[i].data.ptr;
        if (events[i].data.ptr == &server->listen_fd)
            arrivals = true;
        else if (events[i].data.ptr != &server->wake_fd)
            c->events = events[i].events;
    }
    for (store_connection *c = TAILQ_FIRST(&server->list); c != NULL && server->pending > 0;
         c = TAILQ_NEXT(c, arrival))
        if (c->is_pending && !is_called(server))
            serve(server, c);
    for (int i = 0; i < n && !is_called(server); i++) {
        store_connection *c = events[i].data.ptr;
        if (events[i].data.ptr != &server->listen_fd && events[i].data.ptr != &server->wake_fd &&
            c->fd >= 0 && c->events != 0)
            serve(server, c);
    }
    if (arrivals)
        accept_connections(server);
    /* What came in while this thread stood still is read before a lease ends. */
    server->full_turns = n == EVENT_BATCH ? server->full_turns + 1 : 0;
    if (server->full_turns == 0 || server->full_turns > FULL_TURNS)
        store_watched_expire(server->watched);
    connections_wake_due(server);
    run_woken(server);
    connections_sweep(server);
}

static void *serve_all(void *arg)
{
    store_server *server = arg;
    struct epoll_event events[EVENT_BATCH];
    pthread_mutex_lock(&server->lock);
    while (!server->stops) {
        watch_listener(server);
        int wait_ms = sleep_ms(server);
        server->forgot = false;
        pthread_mutex_unlock(&server->lock);
        int n = epoll_wait(server->queue, events, EVENT_BATCH, wait_ms);
        pthread_mutex_lock(&server->lock);
        while (is_called(server))
            pthread_cond_wait(&server->called, &server->lock);
        if (!server->stops)
            take_turns(server, events, server->forgot ? 0 : n); /* n is below 0 for EINTR */
    }
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

/* What the queue looks at for good. */
static status open_queue(store_server *server)
{
    struct epoll_event wake = {.events = EPOLLIN | EPOLLET, .data.ptr = &server->wake_fd};
    struct epoll_event listen = {.events = EPOLLIN, .data.ptr = &server->listen_fd};
    if (epoll_ctl(server->queue, EPOLL_CTL_ADD, server->wake_fd, &wake) != 0 ||
        epoll_ctl(server->queue, EPOLL_CTL_ADD, server->listen_fd, &listen) != 0)
        return FAIL(STATUS_IO, "epoll: %s", strerror(errno));
    server->listens = true;
    return STATUS_OK;
}

static void free_server(store_server *server)
{
    connections_close(server);
    if (server->listen_fd >= 0)
        close(server->listen_fd);
    store_table_destroy(server->table);
    store_table_destroy(server->queues);
    store_watched_destroy(server->watched);
    store_table_destroy(server->kept.authors);
    free(server->kept.prefix);
    pthread_mutex_destroy(&server->lock);
    pthread_cond_destroy(&server->called);
    if (server->wake_fd >= 0)
        close(server->wake_fd);
    if (server->queue >= 0)
        close(server->queue);
    free(server);
}

/* The rest of the process needs descriptors too: a launcher a dozen, and up to four for each worker
 * that it starts. */
static size_t most_connections(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return SIZE_MAX;
    size_t all = (size_t)limit.rlim_cur;
    return all - (all / 4 < SPARE_DESCRIPTORS ? all / 4 : SPARE_DESCRIPTORS);
}

status store_server_create(const char *host, int port, store_server **out)
{
    status st = STATUS_OK;
    store_server *server = calloc(1, sizeof *server);
    if (server == NULL)
        return FAIL(STATUS_NO_MEMORY, "a store server");
    server->listen_fd = -1;
    server->max_connections = most_connections();
    snprintf(server->host, sizeof server->host, "%s", host != NULL ? host : "127.0.0.1");
    pthread_mutex_init(&server->lock, NULL);
    pthread_cond_init(&server->called, NULL);
    server->queue = epoll_create1(EPOLL_CLOEXEC);
    server->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->queue < 0 || server->wake_fd < 0)
        st = FAIL(STATUS_IO, "a store's descriptors: %s", file_limit_reason(errno));
    server->due_ns = INT64_MAX;
    TAILQ_INIT(&server->list);
    TAILQ_INIT(&server->to_run);
    if (st == STATUS_OK)
        st = store_table_create(STORE_BYTES, &server->table);
    if (st == STATUS_OK)
        st = store_table_create(QUEUE_BYTES, &server->queues);
    if (st == STATUS_OK)
        st = store_table_create(AUTHOR_BYTES, &server->kept.authors);
    if (st == STATUS_OK)
        st = store_watched_create(WATCHED_BYTES, on_change, server, &server->watched);
    if (st == STATUS_OK)
        st = socket_listen(host, port, &server->listen_fd, &server->port);
    if (st == STATUS_OK)
        st = open_queue(server);
    if (st == STATUS_OK)
        st = thread_start(serve_all, server, "the store's", &server->thread);
    if (st != STATUS_OK)
        goto out;
    *out = server;
    server = NULL; /* handed over */

out:
    if (server != NULL)
        free_server(server);
    return st;
}

const char *store_server_host(const store_server *server)
{
    return server->host;
}

int store_server_port(const store_server *server)
{
    return server->port;
}

status store_server_keep(store_server *server, const char *prefix)
{
    enter(server);
    status st = kept_choose(&server->kept, prefix);
    leave(server);
    return st;
}

void store_server_forget(store_server *server)
{
    enter(server);
    forget(server);
    server->forgot = true;
    leave(server);
}

void store_server_author(store_server *server, const char *key, char *out)
{
    enter(server);
    kept_author(&server->kept, key, out);
    leave(server);
}

void store_server_destroy(store_server *server)
{
    if (server == NULL)
        return;
    enter(server);
    server->stops = true;
    leave(server);
    pthread_join(server->thread, NULL);
    free_server(server);
}
