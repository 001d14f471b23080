/* How fast a store on c10d's wire answers many clients at once, ours or torch's TCPStore. Each
 * client is a connection that sets a key and gets it again, as torch's client does: SET and WAIT,
 * then GET; and so on, with the next request as soon as the answer is there. Others only greet, and
 * then are idle. One thread drives all. A JSON line on stdout: the milliseconds until the store has
 * answered every client once; calls (set, get) per second from then on, and the milliseconds from a
 * set to the end of its get.
 *
 *     store_clients HOST PORT [CLIENTS [IDLE [SECONDS]]]       default: 100 0 3
 */
#include "base/clock.h"
#include "base/host.h"
#include "dist/net/socket.h"
#include "dist/store/store_wire.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum {
    MAX_CLIENTS = 10000,
    REQUEST_BYTES = 256,
    CALLS = 2, /* of a pair: set and get */
    CONNECT_MS = 5000,
    STALL_MS = 30000, /* no store needs so long */
    BATCH = 256,
};

static const char VALUE[] = "first_value";
enum { VALUE_BYTES = sizeof VALUE - 1 };

typedef struct client {
    int fd;
    bool gets; /* GET is under way, else SET and WAIT are */
    size_t set_bytes, get_bytes, received;
    int64_t start_ns;
    uint8_t set[REQUEST_BYTES], get[REQUEST_BYTES]; /* SET and WAIT; GET */
    uint8_t answer[8 + VALUE_BYTES];
} client;

/* Of all clients. */
typedef struct tally {
    int64_t pairs, capacity;
    float *ms; /* of each pair */
} tally;

static size_t put_bytes(uint8_t *out, const char *bytes, size_t size_bytes)
{
    store_wire_put_u64(out, size_bytes);
    memcpy(out + 8, bytes, size_bytes);
    return 8 + size_bytes;
}

static void write_requests(client *c, int number)
{
    char key[32];
    int length = snprintf(key, sizeof key, "/client/%d", number);
    size_t key_bytes = (size_t)length;
    uint8_t *at = c->set;
    *at++ = STORE_SET;
    at += put_bytes(at, key, key_bytes);
    at += put_bytes(at, VALUE, VALUE_BYTES);
    *at++ = STORE_WAIT;
    store_wire_put_u64(at, 1);
    at += 8;
    at += put_bytes(at, key, key_bytes);
    c->set_bytes = (size_t)(at - c->set);
    c->get[0] = STORE_GET;
    c->get_bytes = 1 + put_bytes(c->get + 1, key, key_bytes);
}

static status greet(const char *host, int port, int *fd)
{
    uint8_t greeting[STORE_GREETING_BYTES] = {STORE_VALIDATE};
    store_wire_put_u32(greeting + 1, STORE_MAGIC);
    TRY(socket_connect(host, port, clock_deadline_ns(CONNECT_MS), fd));
    return socket_send(*fd, greeting, sizeof greeting, clock_deadline_ns(CONNECT_MS));
}

/* Returns once the store has taken the connection. */
static status await_echo(int fd)
{
    uint8_t ping[5] = {STORE_PING}, echo[4];
    TRY(socket_send(fd, ping, sizeof ping, clock_deadline_ns(STALL_MS)));
    return socket_receive(fd, echo, sizeof echo, clock_deadline_ns(STALL_MS));
}

static status send_request(client *c)
{
    return c->gets ? socket_send(c->fd, c->get, c->get_bytes, clock_deadline_ns(STALL_MS))
                   : socket_send(c->fd, c->set, c->set_bytes, clock_deadline_ns(STALL_MS));
}

/* A pair begins. */
static status begin(client *c)
{
    c->gets = false;
    c->start_ns = clock_now_ns();
    return send_request(c);
}

static status end_pair(client *c, tally *all)
{
    if (store_wire_u64(c->answer) != VALUE_BYTES || memcmp(c->answer + 8, VALUE, VALUE_BYTES) != 0)
        return FAIL(STATUS_PEER, "the store answers with another value");
    if (all->pairs < all->capacity)
        all->ms[all->pairs] = (float)((double)(clock_now_ns() - c->start_ns) * 1e-6);
    all->pairs++;
    return begin(c);
}

/* Takes what has come in. WAIT's answer is one byte, GET's the value. */
static status receive(client *c, tally *all)
{
    size_t want = c->gets ? 8 + VALUE_BYTES : 1, got = 0;
    TRY(socket_receive_some(c->fd, c->answer + c->received, want - c->received, &got));
    c->received += got;
    if (c->received < want)
        return STATUS_OK;
    c->received = 0;
    if (c->gets)
        return end_pair(c, all);
    if (c->answer[0] != STORE_WAIT_ENDED)
        return FAIL(STATUS_PEER, "WAIT was answered %d", c->answer[0]);
    c->gets = true;
    return send_request(c);
}

static status drive(client *clients, int n, int64_t end_ns, tally *all)
{
    struct epoll_event events[BATCH];
    int queue = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < n; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &clients[i]};
        if (epoll_ctl(queue, EPOLL_CTL_ADD, clients[i].fd, &event) != 0)
            return FAIL(STATUS_IO, "epoll of %d clients", n);
        TRY(begin(&clients[i]));
    }
    while (!clock_passed(end_ns)) {
        int ready = epoll_wait(queue, events, BATCH, STALL_MS);
        if (ready == 0)
            return FAIL(STATUS_TIMEOUT, "the store has answered nobody for %d s", STALL_MS / 1000);
        for (int i = 0; i < ready; i++)
            TRY(receive(events[i].data.ptr, all));
    }
    return STATUS_OK;
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void print(const tally *all, const int counts[3], double ready_ms, double seconds)
{
    int64_t n = all->pairs < all->capacity ? all->pairs : all->capacity;
    qsort(all->ms, (size_t)n, sizeof *all->ms, compare);
    printf("{\"clients\":%d,\"idle\":%d,\"ready_ms\":%.1f,\"calls_per_s\":%.0f,"
           "\"median_ms\":%.3f,\"p99_ms\":%.3f,\"most_ms\":%.3f}\n",
           counts[0], counts[1], ready_ms, (double)(CALLS * all->pairs) / seconds,
           (double)all->ms[n / 2], (double)all->ms[n * 99 / 100], (double)all->ms[n - 1]);
}

static status measure(const char *host, int port, const int counts[3])
{
    int n = counts[0], idle = counts[1], idle_fd = -1;
    tally all = {.capacity = 10000000};
    client *clients = calloc((size_t)n, sizeof *clients);
    all.ms = malloc((size_t)all.capacity * sizeof *all.ms);
    if (clients == NULL || all.ms == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d clients", n);
    int64_t start_ns = clock_now_ns();
    for (int i = 0; i < idle; i++)
        TRY(greet(host, port, &idle_fd));
    for (int i = 0; i < n; i++) {
        TRY(greet(host, port, &clients[i].fd));
        write_requests(&clients[i], i);
    }
    for (int i = 0; i < n; i++)
        TRY(await_echo(clients[i].fd));
    double ready_ms = clock_seconds(clock_now_ns() - start_ns) * 1e3;
    start_ns = clock_now_ns();
    TRY(drive(clients, n, start_ns + counts[2] * INT64_C(1000000000), &all));
    double seconds = clock_seconds(clock_now_ns() - start_ns);
    if (all.pairs == 0)
        return FAIL(STATUS_TIMEOUT, "no get has ended in %d s", counts[2]);
    print(&all, counts, ready_ms, seconds);
    return STATUS_OK; /* the process ends: so do its connections and memory */
}

int main(int argc, char **argv)
{
    int counts[3] = {100, 0, 3};
    for (int i = 3; i < argc && i < 6; i++)
        counts[i - 3] = atoi(argv[i]);
    if (argc < 3 || argc > 6 || counts[0] < 1 || counts[0] > MAX_CLIENTS || counts[1] < 0 ||
        counts[1] > MAX_CLIENTS || counts[2] < 1) {
        fprintf(stderr, "store_clients HOST PORT [CLIENTS [IDLE [SECONDS]]]\n");
        return 64;
    }
    (void)file_limit_raise();
    status st = measure(argv[1], atoi(argv[2]), counts);
    if (st != STATUS_OK)
        fprintf(stderr, "store_clients: %s\n", status_text());
    return st == STATUS_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
