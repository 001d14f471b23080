#include "base/clock.h"
#include "base/log.h"
#include "dist/net/socket.h"
#include "dist/store/store.h"
#include "dist/store/store_session.h"
#include "dist/store/store_table.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    GREETING_MS = 5000, /* a connection that has not greeted by then is closed */
    MAX_UNGREETED = 64, /* beyond, the oldest is closed */
    ACCEPT_BATCH = 64,  /* connections per turn, so that the others get theirs */
    READ_BATCH = 16,    /* reads of one connection per turn, likewise */
    ACCEPT_PAUSE_MS = 100,
    STORE_BYTES = 1 << 30, /* all keys and values together */
};

/* In the order of their arrival. Closed ones are dropped at the end of a turn. */
typedef struct connection {
    struct connection *next;
    int fd;       /* -1 once closed */
    bool to_run;  /* the key that it waits for was set */
    short events; /* what poll reported this turn */
    int64_t greeting_deadline_ns;
    store_session session;
    bool kept; /* it has set a key under the kept prefix */
} connection;

/* What the thread is woken for. */
typedef enum server_order { ORDER_NONE, ORDER_KEEP, ORDER_FORGET, ORDER_STOP } server_order;

struct store_server {
    pthread_t thread;
    int listen_fd, wake_fd, port;
    pthread_mutex_t order_lock;
    pthread_cond_t order_done;
    server_order order; /* ORDER_NONE once it is done */
    char *order_prefix; /* of ORDER_KEEP */
    char *kept_prefix;  /* NULL: none. From here on the thread's own */
    store_table *table;
    connection *running; /* whose requests are being answered */
    connection *first, **end;
    size_t count, ungreeted;
    bool any_to_run;
    bool told;              /* that connections cannot be taken, once */
    int64_t accept_from_ns; /* accepting pauses until then */
    struct pollfd *polled;  /* wake, listen, then the connections in order */
    size_t polled_capacity;
};

static bool is_kept(const store_server *server, store_bytes key)
{
    size_t length = server->kept_prefix == NULL ? 0 : strlen(server->kept_prefix);
    return length > 0 && key.size >= length && memcmp(key.data, server->kept_prefix, length) == 0;
}

static void on_set(void *ctx, store_bytes key)
{
    store_server *server = ctx;
    server->running->kept = server->running->kept || is_kept(server, key);
    for (connection *c = server->first; c != NULL; c = c->next) {
        if (c->fd >= 0 && store_session_awaits(&c->session, key)) {
            c->to_run = true;
            server->any_to_run = true;
        }
    }
}

static void close_connection(store_server *server, connection *c, const char *why)
{
    if (c->fd < 0)
        return;
    LOG_D("store on port %d: closed connection %d: %s", server->port, c->fd, why);
    close(c->fd);
    c->fd = -1;
    if (!c->session.greeted)
        server->ungreeted--;
    store_session_close(&c->session);
}

static status send_answers(connection *c)
{
    byte_buffer *out = &c->session.out;
    while (out->size > 0) {
        size_t sent;
        TRY(socket_send_some(c->fd, out->data, out->size, &sent));
        if (sent == 0)
            return STATUS_OK;
        byte_buffer_consume(out, sent);
    }
    return STATUS_OK;
}

static status run_session(store_server *server, connection *c)
{
    bool greeted = c->session.greeted;
    server->running = c;
    status st = store_session_run(&c->session, server->table, on_set, server);
    if (!greeted && c->session.greeted)
        server->ungreeted--;
    TRY(st);
    return send_answers(c);
}

/* Takes what has come in, a bounded number of reads. */
static status read_requests(store_server *server, connection *c)
{
    for (int i = 0; i < READ_BATCH; i++) {
        size_t appetite = store_session_appetite(&c->session), got;
        if (appetite == 0)
            return STATUS_OK;
        uint8_t *end;
        TRY(byte_buffer_reserve(&c->session.in, appetite, &end));
        TRY(socket_receive_some(c->fd, end, appetite, &got));
        if (got == 0)
            return STATUS_OK;
        byte_buffer_extend(&c->session.in, got);
        TRY(run_session(server, c));
    }
    return STATUS_OK;
}

static void serve(store_server *server, connection *c)
{
    status st = STATUS_OK;
    if ((c->events & POLLOUT) != 0)
        st = send_answers(c);
    if (st == STATUS_OK && (c->events & (POLLIN | POLLHUP | POLLERR)) != 0)
        st = read_requests(server, c);
    /* Hung up, and with more behind the waiting request than is worth reading. */
    if (st == STATUS_OK && (c->events & (POLLRDHUP | POLLHUP | POLLERR)) != 0 &&
        store_session_appetite(&c->session) == 0)
        st = FAIL(STATUS_PEER, "the other side hung up");
    if (st != STATUS_OK)
        close_connection(server, c, status_message());
}

/* Sessions whose key was set; what they do may set keys that others wait for. */
static void run_woken(store_server *server)
{
    while (server->any_to_run) {
        server->any_to_run = false;
        for (connection *c = server->first; c != NULL; c = c->next) {
            if (!c->to_run || c->fd < 0)
                continue;
            c->to_run = false;
            if (run_session(server, c) != STATUS_OK)
                close_connection(server, c, status_message());
        }
    }
}

static connection *oldest_ungreeted(const store_server *server)
{
    for (connection *c = server->first; c != NULL; c = c->next) {
        if (c->fd >= 0 && !c->session.greeted)
            return c;
    }
    return NULL;
}

static status add_connection(store_server *server, int fd)
{
    connection *c = calloc(1, sizeof *c);
    if (c == NULL) {
        close(fd);
        return FAIL(STATUS_NO_MEMORY, "a connection");
    }
    c->fd = fd;
    c->greeting_deadline_ns = clock_deadline_ns(GREETING_MS);
    *server->end = c;
    server->end = &c->next;
    server->count++;
    server->ungreeted++;
    /* The greeting mostly comes along with the connection: then it never counts as waiting. */
    c->events = POLLIN;
    serve(server, c);
    return STATUS_OK;
}

static void accept_connections(store_server *server)
{
    for (int i = 0; i < ACCEPT_BATCH; i++) {
        int fd = -1;
        status st = socket_accept(server->listen_fd, &fd);
        if (st == STATUS_OK && fd < 0)
            return;
        if (st == STATUS_OK)
            st = add_connection(server, fd);
        /* One that is about to be turned out may have greeted by now. */
        while (server->ungreeted > MAX_UNGREETED || (st != STATUS_OK && server->ungreeted > 0)) {
            connection *oldest = oldest_ungreeted(server);
            oldest->events = POLLIN;
            serve(server, oldest);
            if (oldest->fd < 0 || oldest->session.greeted)
                continue;
            close_connection(server, oldest, "too many connections have not greeted");
            if (st != STATUS_OK)
                break;
        }
        if (st != STATUS_OK) {
            log_line(server->told ? LOG_DEBUG : LOG_WARNING,
                     "store on port %d: cannot take a connection: %s", server->port,
                     status_message());
            server->told = true;
            server->accept_from_ns = clock_deadline_ns(ACCEPT_PAUSE_MS);
            return;
        }
    }
}

/* Frees closed connections and closes those whose greeting is overdue. */
static void sweep(store_server *server)
{
    int64_t now = clock_now_ns();
    for (connection **link = &server->first; *link != NULL;) {
        connection *c = *link;
        if (c->fd >= 0 && !c->session.greeted && now >= c->greeting_deadline_ns)
            close_connection(server, c, "no greeting came");
        if (c->fd >= 0) {
            link = &c->next;
            continue;
        }
        *link = c->next;
        server->count--;
        free(c);
    }
    connection **end = &server->first;
    while (*end != NULL)
        end = &(*end)->next;
    server->end = end;
}

/* How long poll may sleep: to the next overdue greeting, or the end of the pause. */
static int sleep_ms(const store_server *server)
{
    int64_t until = INT64_MAX;
    const connection *oldest = oldest_ungreeted(server);
    if (oldest != NULL)
        until = oldest->greeting_deadline_ns;
    if (server->accept_from_ns != 0 && server->accept_from_ns < until)
        until = server->accept_from_ns;
    return until == INT64_MAX ? -1 : clock_remaining_ms(until);
}

static status prepare_poll(store_server *server)
{
    size_t need = server->count + 2;
    if (need > server->polled_capacity) {
        struct pollfd *grown = realloc(server->polled, 2 * need * sizeof *grown);
        if (grown == NULL)
            return FAIL(STATUS_NO_MEMORY, "%zu connections", need);
        server->polled = grown;
        server->polled_capacity = 2 * need;
    }
    if (server->accept_from_ns != 0 && clock_passed(server->accept_from_ns))
        server->accept_from_ns = 0;
    struct pollfd *p = server->polled;
    *p++ = (struct pollfd){.fd = server->wake_fd, .events = POLLIN};
    *p++ = (struct pollfd){.fd = server->accept_from_ns == 0 ? server->listen_fd : -1,
                           .events = POLLIN};
    for (const connection *c = server->first; c != NULL; c = c->next) {
        bool hungry = store_session_appetite(&c->session) > 0;
        bool full = c->session.out.size > 0;
        *p++ = (struct pollfd){
            .fd = c->fd, .events = (short)((hungry ? POLLIN : POLLRDHUP) | (full ? POLLOUT : 0))};
    }
    return STATUS_OK;
}

static bool is_forgotten(const void *server, store_bytes key)
{
    return !is_kept(server, key);
}

static void forget(store_server *server)
{
    int fd = -1;
    while (socket_accept(server->listen_fd, &fd) == STATUS_OK && fd >= 0)
        close(fd); /* nobody has heard it yet */
    for (connection *c = server->first; c != NULL; c = c->next) {
        if (!c->kept)
            close_connection(server, c, "its process has ended");
    }
    sweep(server);
    store_table_delete_if(server->table, is_forgotten, server);
}

/* Does what the thread was woken for; false: it is to end. */
static bool take_order(store_server *server)
{
    uint64_t count;
    ssize_t n = read(server->wake_fd, &count, sizeof count);
    ASSERT(n == (ssize_t)sizeof count);
    pthread_mutex_lock(&server->order_lock);
    server_order order = server->order;
    if (order == ORDER_KEEP) {
        free(server->kept_prefix);
        server->kept_prefix = server->order_prefix;
        server->order_prefix = NULL;
    } else if (order == ORDER_FORGET) {
        forget(server);
    }
    server->order = ORDER_NONE;
    pthread_cond_signal(&server->order_done);
    pthread_mutex_unlock(&server->order_lock);
    return order != ORDER_STOP;
}

static void *serve_all(void *arg)
{
    store_server *server = arg;
    for (;;) {
        if (prepare_poll(server) != STATUS_OK) {
            /* No memory for one more: do with one less. */
            connection *last = server->first;
            while (last->next != NULL)
                last = last->next;
            close_connection(server, last, status_message());
            sweep(server);
            continue;
        }
        nfds_t n = (nfds_t)(server->count + 2);
        if (poll(server->polled, n, sleep_ms(server)) < 0)
            continue; /* EINTR, or memory that comes back */
        if (server->polled[0].revents != 0) {
            if (!take_order(server))
                return NULL;
            continue; /* what was polled may be gone */
        }
        const struct pollfd *p = server->polled + 2;
        for (connection *c = server->first; c != NULL; c = c->next, p++)
            c->events = p->revents;
        for (connection *c = server->first; c != NULL; c = c->next) {
            if (c->fd >= 0 && c->events != 0)
                serve(server, c);
        }
        if (server->polled[1].revents != 0)
            accept_connections(server);
        run_woken(server);
        sweep(server);
    }
}

/* The thread takes no signals: they are for the threads that expect them. */
static status start_thread(store_server *server)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(&server->thread, NULL, serve_all, server);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return error == 0 ? STATUS_OK : FAIL(STATUS_IO, "the store's thread: %s", strerror(error));
}

static void free_server(store_server *server)
{
    for (connection *c = server->first, *next; c != NULL; c = next) {
        next = c->next;
        close_connection(server, c, "the store ends");
        free(c);
    }
    if (server->listen_fd >= 0)
        close(server->listen_fd);
    if (server->wake_fd >= 0)
        close(server->wake_fd);
    store_table_destroy(server->table);
    pthread_mutex_destroy(&server->order_lock);
    pthread_cond_destroy(&server->order_done);
    free(server->order_prefix);
    free(server->kept_prefix);
    free(server->polled);
    free(server);
}

status store_server_create(const char *host, int port, store_server **out)
{
    status st = STATUS_OK;
    store_server *server = calloc(1, sizeof *server);
    if (server == NULL)
        return FAIL(STATUS_NO_MEMORY, "a store server");
    server->listen_fd = server->wake_fd = -1;
    server->end = &server->first;
    pthread_mutex_init(&server->order_lock, NULL);
    pthread_cond_init(&server->order_done, NULL);
    server->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->wake_fd < 0) {
        st = FAIL(STATUS_IO, "eventfd: %s", strerror(errno));
        goto out;
    }
    st = prepare_poll(server);
    if (st == STATUS_OK)
        st = store_table_create(STORE_BYTES, &server->table);
    if (st == STATUS_OK)
        st = socket_listen(host, port, &server->listen_fd, &server->port);
    if (st == STATUS_OK)
        st = start_thread(server);
    if (st != STATUS_OK)
        goto out;
    *out = server;
    server = NULL; /* handed over */

out:
    if (server != NULL)
        free_server(server);
    return st;
}

int store_server_port(const store_server *server)
{
    return server->port;
}

/* Wakes the thread and returns once it has done what was ordered. */
static void give_order(store_server *server, server_order order, char *prefix)
{
    uint64_t one = 1;
    pthread_mutex_lock(&server->order_lock);
    server->order = order;
    server->order_prefix = prefix;
    ssize_t n = write(server->wake_fd, &one, sizeof one);
    ASSERT(n == (ssize_t)sizeof one);
    while (server->order != ORDER_NONE)
        pthread_cond_wait(&server->order_done, &server->order_lock);
    pthread_mutex_unlock(&server->order_lock);
}

status store_server_keep(store_server *server, const char *prefix)
{
    char *copy = NULL;
    if (prefix[0] != '\0' && asprintf(&copy, "/%s", prefix) < 0)
        return FAIL(STATUS_NO_MEMORY, "a store's prefix");
    give_order(server, ORDER_KEEP, copy);
    return STATUS_OK;
}

void store_server_forget(store_server *server)
{
    give_order(server, ORDER_FORGET, NULL);
}

void store_server_destroy(store_server *server)
{
    if (server == NULL)
        return;
    give_order(server, ORDER_STOP, NULL);
    pthread_join(server->thread, NULL);
    free_server(server);
}
