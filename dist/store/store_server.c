#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/thread.h"
#include "dist/net/socket.h"
#include "dist/net/socket_address.h"
#include "dist/store/store.h"
#include "dist/store/store_commands.h"
#include "dist/store/store_connections.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    MAX_UNGREETED = 64, /* beyond, the oldest is closed */
    ACCEPT_BATCH = 64,  /* connections per turn, so that the others get theirs */
    ACCEPT_PAUSE_MS = 100,
    TURN_BYTES = 1 << 20,     /* that one connection may touch per turn, likewise */
    READ_BYTES = 64 << 10,    /* per system call */
    STORE_BYTES = 1 << 30,    /* all keys and values together, */
    QUEUE_BYTES = 256 << 20,  /* and all queues */
    BUFFER_BYTES = 256 << 20, /* what all connections have sent in part, or have not read yet */
    WATCHED_BYTES = 32 << 20, /* all watched keys together: an answer has at most as much */
    SPARE_DESCRIPTORS = 512,  /* at most, and a quarter of all, for the rest of the process */
    FORGET_BATCH = 1 << 16,
    EVENT_BATCH = 256, /* of one look at the queue; it brings the others next */
    FULL_TURNS = 100,  /* in a row; more are load, and no leftovers */
};

struct store_server {
    pthread_t thread;
    int listen_fd, port;
    char host[SOCKET_ADDRESS_BYTES];
    store_commands commands;

    /* the thread's own */
    store_kept kept;
    store_table *table, *queues;
    store_watched *watched;
    store_connections all;
    store_connection *running; /* whose requests are being answered */
    size_t max_connections;
    int full_turns;         /* in a row that had EVENT_BATCH events */
    bool told;              /* that connections cannot be taken, once */
    int64_t accept_from_ns; /* accepting pauses until then */
    int queue;              /* epoll: wake, listen, and the connections */
    bool listens;           /* the queue looks for connections */
    uint8_t read_bytes[READ_BYTES];
};

static void on_set(void *ctx, store_bytes key, store_wake who)
{
    store_server *server = ctx;
    server->running->wrote = true;
    if (store_kept_has(&server->kept, key)) {
        server->running->kept = true;
        if (store_kept_note(&server->kept, key, server->running->fd) != STATUS_OK)
            LOG_D("store on port %d: %s", server->port, status_text());
    }
    store_connections_wake(&server->all, server->table, key, who);
}

static void on_change(void *ctx, store_bytes key)
{
    store_server *server = ctx;
    store_connections_wake_watchers(&server->all, server->table, key);
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
        server->all.ungreeted--;
    if (c->session.watches) /* an agent's */
        c->wrote = c->kept = true;
    if (st == STATUS_OK)
        st = send_answers(c);
    if (st == STATUS_OK)
        st = store_connections_settle(&server->all, c, server->table);
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
            return STATUS_OK; /* that was all; epoll tells of more */
    }
    return STATUS_OK;
}

/* If memory ran out (errno tells that from the store's own limits), what the connection wrote may
 * be lost, and others would wait for it: so all are told. */
static void drop_failed(store_server *server, store_connection *failed, status st)
{
    bool all = st == STATUS_NO_MEMORY && errno == ENOMEM;
    if (all)
        LOG_W("store on port %d: closes all connections: %s", server->port, status_text());
    for (store_connection *c = server->all.first; all && c != NULL; c = c->next)
        if (c->fd >= 0 && c != failed)
            store_connections_drop(&server->all, c, "the store is out of memory");
    store_connections_drop(&server->all, failed, status_text());
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
    store_connections_watch(&server->all, c);
    store_connections_shed_bytes(&server->all, BUFFER_BYTES);
}

/* Runs sessions whose key was set, as far as one budget for all goes. They may set keys that others
 * wait for: those run in the next turn. */
static void run_woken(store_server *server)
{
    store_connections *all = &server->all;
    const store_connection *last = NULL;
    for (const store_connection *c = all->first_to_run; c != NULL; c = c->next_to_run)
        last = c;
    size_t budget_bytes = TURN_BYTES;
    while (last != NULL && budget_bytes > 0 && !store_commands_pending(&server->commands)) {
        store_connection *c = store_connections_next_to_run(all);
        errno = 0;
        status st = c->fd >= 0 ? run_session(server, c, &budget_bytes) : STATUS_OK;
        if (st != STATUS_OK)
            drop_failed(server, c, st);
        store_connections_watch(all, c);
        store_connections_shed_bytes(all, BUFFER_BYTES);
        if (c == last)
            return;
    }
}

/* The greeting mostly comes with the connection: then it never counts as waiting. One that is about
 * to be closed may have greeted by now. */
static void add_connection(store_server *server, int fd)
{
    store_connections *all = &server->all;
    store_connection *c;
    if (store_connections_add(all, fd, &c) != STATUS_OK)
        return;
    c->events = POLLIN;
    serve(server, c);
    while (all->ungreeted > MAX_UNGREETED) {
        store_connection *oldest = store_connections_oldest_ungreeted(all);
        oldest->events = POLLIN;
        serve(server, oldest);
        if (oldest->fd >= 0 && !oldest->session.greeted)
            store_connections_drop(all, oldest, "too many connections have not greeted");
    }
}

/* Says once why connections cannot be taken, and tries again after a pause. A lack of descriptors
 * is told as such. */
static void pause_accepting(store_server *server, status st)
{
    log_level level = server->told ? LOG_DEBUG : LOG_WARNING;
    if (st == STATUS_NO_MEMORY)
        log_line(level,
                 "store on port %d: %zu connections are open, and no more can be taken: %s; raise "
                 "the limit on open files (ulimit -n)",
                 server->port, server->all.count, status_text());
    else
        log_line(level, "store on port %d: cannot take a connection: %s", server->port,
                 status_text());
    server->told = true;
    server->accept_from_ns = clock_deadline_ns(ACCEPT_PAUSE_MS);
}

/* accept() says that descriptors are short even if nobody waits. */
static status accept_one(store_server *server, int *fd)
{
    status st = server->all.count < server->max_connections
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
    for (int i = 0; i < ACCEPT_BATCH && !store_commands_pending(&server->commands); i++) {
        int fd = -1;
        status st = accept_one(server, &fd);
        if (st == STATUS_OK && fd < 0)
            return;
        if (st == STATUS_OK) {
            add_connection(server, fd);
        } else if (st == STATUS_NO_MEMORY && store_connections_shed_one(&server->all)) {
            store_connections_sweep(&server->all);
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
    if (server->all.first_to_run != NULL || server->all.pending > 0)
        return 0;
    const store_connection *oldest = store_connections_oldest_ungreeted(&server->all);
    if (oldest != NULL && oldest->greeting_deadline_ns < until)
        until = oldest->greeting_deadline_ns;
    if (server->all.due_ns < until)
        until = server->all.due_ns;
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

static bool is_forgotten(const void *server, store_bytes key)
{
    return !store_kept_has(&((const store_server *)server)->kept, key);
}

static void forget(store_server *server)
{
    int fd = -1;
    for (int i = 0; i < FORGET_BATCH; i++) {
        if (socket_accept(server->listen_fd, &fd) != STATUS_OK || fd < 0)
            break;
        close(fd); /* nobody has heard it yet */
    }
    for (store_connection *c = server->all.first; c != NULL; c = c->next) {
        if (!c->kept)
            store_connections_drop(&server->all, c, "its process has ended");
    }
    store_connections_sweep(&server->all);
    store_table_delete_if(server->table, is_forgotten, server);
    store_table_delete_if(server->queues, is_forgotten, server);
    store_table_delete_if(server->kept.authors, is_forgotten, server);
}

static void carry_out(void *ctx, store_command *command)
{
    store_server *server = ctx;
    if (command->task == STORE_KEEP)
        command->result = store_kept_choose(&server->kept, command->text);
    else if (command->task == STORE_FORGET)
        forget(server);
    else
        store_kept_author(&server->kept, command->text, command->author);
}

/* One turn for every connection that has something to do. A command ends the round: those left out
 * are reported again. */
static void take_turns(store_server *server, const struct epoll_event *events, int n)
{
    store_connections *all = &server->all;
    bool arrivals = false;
    for (int i = 0; i < n; i++) {
        store_connection *c = events[i].data.ptr;
        if (events[i].data.ptr == &server->listen_fd)
            arrivals = true;
        else
            c->events = events[i].events;
    }
    for (store_connection *c = all->first; c != NULL && all->pending > 0; c = c->next)
        if (c->is_pending && !store_commands_pending(&server->commands))
            serve(server, c);
    for (int i = 0; i < n && !store_commands_pending(&server->commands); i++) {
        store_connection *c = events[i].data.ptr;
        if (events[i].data.ptr != &server->listen_fd && c->fd >= 0 && c->events != 0)
            serve(server, c);
    }
    if (arrivals)
        accept_connections(server);
    /* What came in while this thread stood still is read before a lease ends. */
    server->full_turns = n == EVENT_BATCH ? server->full_turns + 1 : 0;
    if (server->full_turns == 0 || server->full_turns > FULL_TURNS)
        store_watched_expire(server->watched);
    store_connections_wake_due(all);
    run_woken(server);
    store_connections_sweep(all);
}

static void *serve_all(void *arg)
{
    store_server *server = arg;
    struct epoll_event events[EVENT_BATCH];
    for (;;) {
        watch_listener(server);
        int n = epoll_wait(server->queue, events, EVENT_BATCH, sleep_ms(server));
        bool called = false;
        for (int i = 0; i < n; i++)
            called = called || events[i].data.ptr == &server->commands;
        if (!called)
            take_turns(server, events, n); /* n is below 0 for EINTR */
        else if (!store_commands_take(&server->commands, carry_out, server))
            return NULL; /* else what was reported may be gone: nobody's turn */
    }
}

/* What the queue looks at for good. */
static status open_queue(store_server *server)
{
    struct epoll_event wake = {.events = EPOLLIN, .data.ptr = &server->commands};
    struct epoll_event listen = {.events = EPOLLIN, .data.ptr = &server->listen_fd};
    if (epoll_ctl(server->queue, EPOLL_CTL_ADD, server->commands.wake_fd, &wake) != 0 ||
        epoll_ctl(server->queue, EPOLL_CTL_ADD, server->listen_fd, &listen) != 0)
        return FAIL(STATUS_IO, "epoll: %s", strerror(errno));
    server->listens = true;
    return STATUS_OK;
}

static void free_server(store_server *server)
{
    store_connections_close(&server->all);
    if (server->listen_fd >= 0)
        close(server->listen_fd);
    store_table_destroy(server->table);
    store_table_destroy(server->queues);
    store_watched_destroy(server->watched);
    store_kept_close(&server->kept);
    store_commands_close(&server->commands);
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
    server->queue = epoll_create1(EPOLL_CLOEXEC);
    if (server->queue < 0)
        st = FAIL(STATUS_IO, "epoll: %s", file_limit_reason(errno));
    store_connections_init(&server->all, server->queue, port);
    server->commands.wake_fd = -1;
    if (st == STATUS_OK)
        st = store_commands_init(&server->commands);
    if (st == STATUS_OK)
        st = store_table_create(STORE_BYTES, &server->table);
    if (st == STATUS_OK)
        st = store_table_create(QUEUE_BYTES, &server->queues);
    if (st == STATUS_OK)
        st = store_kept_init(&server->kept);
    if (st == STATUS_OK)
        st = store_watched_create(WATCHED_BYTES, on_change, server, &server->watched);
    server->all.watched = server->watched;
    if (st == STATUS_OK)
        st = socket_listen(host, port, &server->listen_fd, &server->port);
    server->all.port = server->port;
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
    store_command command = {.task = STORE_KEEP, .text = prefix};
    store_commands_run(&server->commands, &command);
    return command.result;
}

void store_server_forget(store_server *server)
{
    store_commands_run(&server->commands, &(store_command){.task = STORE_FORGET});
}

void store_server_author(store_server *server, const char *key, char *out)
{
    out[0] = '\0';
    store_commands_run(&server->commands,
                       &(store_command){.task = STORE_AUTHOR, .text = key, .author = out});
}

void store_server_destroy(store_server *server)
{
    if (server == NULL)
        return;
    store_commands_run(&server->commands, &(store_command){.task = STORE_STOP});
    pthread_join(server->thread, NULL);
    free_server(server);
}
