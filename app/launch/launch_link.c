#include "app/launch/launch_link.h"

#include "app/launch/launch_join.h"
#include "app/launch/launch_jury.h"
#include "base/clock.h"
#include "base/log.h"
#include "dist/plain_message.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { WHY_BYTES = 1024, QUIT_MS = 2000, RETRY_MS = 100 };

/* What the launcher asks of the thread, and what it is told; both under the lock. */
typedef struct exchange {
    int generation;
    bool trouble;           /* to be told */
    char *end;              /* a record to be told; NULL */
    launch_event events[4]; /* not yet taken */
    int n_events;
    launch_verdict verdict;
    char why[WHY_BYTES];
    int node;
} exchange;

struct launch_link {
    launch_joining joining;
    store_server *server; /* node 0 */
    pthread_t thread;
    pthread_mutex_t lock;
    exchange x;
    int order_fd, event_fd; /* eventfds: something for the thread, for the launcher */
    atomic_bool quit;

    /* the thread's own */
    store *client;
    launch_jury *jury; /* node 0 */
    int generation;
    bool knows_trouble, told_end, told_verdict;
    int64_t beat_ns; /* when the next is due */
};

static void raise_fd(int fd)
{
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);
    ASSERT(n == (ssize_t)sizeof one);
}

static void clear_fd(int fd)
{
    uint64_t count;
    if (read(fd, &count, sizeof count) < 0)
        return; /* nothing was in it */
}

static void tell(launch_link *link, launch_event event)
{
    pthread_mutex_lock(&link->lock);
    if (link->x.n_events < (int)(sizeof link->x.events / sizeof link->x.events[0]))
        link->x.events[link->x.n_events++] = event;
    pthread_mutex_unlock(&link->lock);
    raise_fd(link->event_fd);
}

static void tell_failure(launch_link *link, launch_event event)
{
    pthread_mutex_lock(&link->lock);
    plain_message(link->x.why, sizeof link->x.why);
    pthread_mutex_unlock(&link->lock);
    tell(link, event);
}

static void key_of(const launch_link *link, const char *name, int number,
                   char out[LAUNCH_KEY_BYTES])
{
    launch_join_key(&link->joining, name, number, out);
}

static int own_node(launch_link *link)
{
    pthread_mutex_lock(&link->lock);
    int node = link->x.node;
    pthread_mutex_unlock(&link->lock);
    return node;
}

/* Whoever else serves the store keeps only what its launchers say: see store_server_forget(). The
 * first beat makes this connection one of theirs. */
static status beat(launch_link *link)
{
    char key[LAUNCH_KEY_BYTES];
    int64_t beats = 0;
    if (link->beat_ns != 0 && !clock_passed(link->beat_ns))
        return STATUS_OK;
    link->beat_ns = clock_deadline_ns(link->joining.settings->plan.keep_alive_ms);
    key_of(link, "beat", own_node(link), key);
    return store_add(link->client, key, 1, &beats);
}

/* The launcher's orders, taken under the lock; *end is the thread's to free. */
static void take_orders(launch_link *link, bool *trouble, char **end)
{
    pthread_mutex_lock(&link->lock);
    if (link->x.generation != link->generation) {
        link->generation = link->x.generation;
        link->knows_trouble = link->told_end = false;
    }
    *trouble = link->x.trouble;
    *end = link->x.end;
    link->x.trouble = false;
    link->x.end = NULL;
    pthread_mutex_unlock(&link->lock);
}

static status follow_orders(launch_link *link)
{
    char key[LAUNCH_KEY_BYTES], name[64], *end = NULL;
    bool trouble = false;
    status st = STATUS_OK;
    take_orders(link, &trouble, &end);
    if (trouble) {
        link->knows_trouble = true;
        key_of(link, "trouble", link->generation, key);
        st = store_set(link->client, key, "1", 1);
    }
    if (end != NULL && st == STATUS_OK) {
        snprintf(name, sizeof name, "end/%d", link->generation);
        key_of(link, name, own_node(link), key);
        st = store_set(link->client, key, end, strlen(end));
        link->told_end = true;
    }
    free(end);
    return st;
}

static status look_for_trouble(launch_link *link)
{
    char key[LAUNCH_KEY_BYTES];
    bool there = false;
    if (link->knows_trouble)
        return STATUS_OK;
    key_of(link, "trouble", link->generation, key);
    TRY(store_check(link->client, key, &there));
    if (!there)
        return STATUS_OK;
    link->knows_trouble = true;
    tell(link, LAUNCH_TROUBLE);
    return STATUS_OK;
}

/* Node 0 hears the others and judges. */
static status judge(launch_link *link)
{
    bool alarm = link->knows_trouble, judged = false;
    if (link->jury == NULL)
        return STATUS_OK;
    TRY(launch_jury_hear(link->jury, link->client, link->generation, &alarm));
    if (alarm && !link->knows_trouble) {
        link->knows_trouble = true;
        tell(link, LAUNCH_TROUBLE);
    }
    return launch_jury_judge(link->jury, link->client, link->server, link->generation, &judged);
}

static status look_for_verdict(launch_link *link)
{
    char key[LAUNCH_KEY_BYTES];
    bool there = false;
    void *text = NULL;
    size_t size_bytes;
    launch_verdict verdict;
    if (!link->told_end)
        return STATUS_OK;
    key_of(link, "verdict", link->generation, key);
    TRY(store_check(link->client, key, &there));
    if (!there)
        return STATUS_OK;
    TRY(store_get(link->client, key, &text, &size_bytes));
    status st = launch_verdict_read(text, &verdict);
    free(text);
    TRY(st);
    link->told_end = false;
    link->told_verdict = true;
    pthread_mutex_lock(&link->lock);
    launch_verdict_free(&link->x.verdict);
    link->x.verdict = verdict;
    pthread_mutex_unlock(&link->lock);
    tell(link, LAUNCH_VERDICT);
    return STATUS_OK;
}

static status one_turn(launch_link *link)
{
    TRY(follow_orders(link));
    TRY(beat(link));
    TRY(look_for_trouble(link));
    TRY(judge(link));
    return look_for_verdict(link);
}

/* The connection broke; node 0 may still be there. Only for as long as a silent node is believed to
 * live, and not where its launcher is known to be gone. */
static status reconnect(launch_link *link, int64_t silent_since_ns)
{
    const launch_plan *plan = &link->joining.settings->plan;
    int64_t patience_ns = plan->keep_alive_ms * plan->keep_alive_misses * 1000000;
    char message[512];
    plain_message(message, sizeof message);
    store_destroy(link->client);
    link->client = NULL;
    while (!atomic_load(&link->quit)) {
        status st = launch_join_reach(&link->joining, &link->client);
        if (st == STATUS_OK)
            link->beat_ns = 0;
        if (st == STATUS_OK)
            return STATUS_OK;
        double silent_s = clock_seconds(clock_now_ns() - silent_since_ns);
        bool refused = strstr(status_message(), "refused") != NULL;
        if (refused)
            return FAIL(STATUS_PEER,
                        "node 0's launcher at %s:%d is gone: its own output says why, if anything "
                        "does",
                        plan->master_addr, link->joining.port);
        if (clock_now_ns() - silent_since_ns > patience_ns)
            return FAIL(STATUS_PEER,
                        "node 0 at %s:%d has not been reached for %.1f s (%s): that machine is "
                        "down, or the link to it",
                        plan->master_addr, link->joining.port, silent_s, message);
        clock_sleep_ms(RETRY_MS);
    }
    return FAIL(STATUS_PEER, "told to stop");
}

static void watch(launch_link *link)
{
    struct pollfd order = {.fd = link->order_fd, .events = POLLIN};
    int interval_ms = (int)link->joining.settings->plan.monitor_ms;
    int64_t heard_ns = clock_now_ns();
    while (!atomic_load(&link->quit)) {
        status st = one_turn(link);
        if (st == STATUS_OK) {
            heard_ns = clock_now_ns();
            poll(&order, 1, interval_ms > 0 ? interval_ms : 1);
            clear_fd(link->order_fd);
            continue;
        }
        if (reconnect(link, heard_ns) != STATUS_OK) {
            tell_failure(link, LAUNCH_CUT_OFF);
            return;
        }
    }
}

static void *run(void *arg)
{
    launch_link *link = arg;
    int node = 0;
    status st = launch_join_connect(&link->joining, &link->client);
    if (st == STATUS_OK)
        st = launch_join_meet(&link->joining, link->client, &node);
    if (st == STATUS_OK && node == 0)
        st = launch_jury_create(&link->joining, &link->jury);
    if (st != STATUS_OK) {
        tell_failure(link, LAUNCH_NOT_JOINED);
        return NULL;
    }
    pthread_mutex_lock(&link->lock);
    link->x.node = node;
    pthread_mutex_unlock(&link->lock);
    tell(link, LAUNCH_JOINED);
    watch(link);
    return NULL;
}

/* The thread takes no signals: they are for the launcher. */
static status start_thread(launch_link *link)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(&link->thread, NULL, run, link);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return error == 0 ? STATUS_OK : FAIL(STATUS_IO, "the link's thread: %s", strerror(error));
}

static void free_link(launch_link *link)
{
    store_destroy(link->client);
    launch_jury_destroy(link->jury);
    launch_verdict_free(&link->x.verdict);
    free(link->x.end);
    pthread_mutex_destroy(&link->lock);
    if (link->order_fd >= 0)
        close(link->order_fd);
    if (link->event_fd >= 0)
        close(link->event_fd);
    free(link);
}

status launch_link_create(const launch_settings *settings, store_server *server, int port,
                          launch_link **out)
{
    launch_link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return FAIL(STATUS_NO_MEMORY, "the link to the other nodes");
    link->joining = (launch_joining){
        .settings = settings, .serves = server != NULL, .port = port, .quit = &link->quit};
    link->server = server;
    pthread_mutex_init(&link->lock, NULL);
    link->order_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    link->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    status st = link->order_fd >= 0 && link->event_fd >= 0
                    ? STATUS_OK
                    : FAIL(STATUS_IO, "eventfd: %s", strerror(errno));
    if (st == STATUS_OK && server != NULL)
        st = store_server_keep(server, LAUNCH_KEYS);
    if (st == STATUS_OK)
        st = start_thread(link);
    if (st == STATUS_OK)
        *out = link;
    else
        free_link(link);
    return st;
}

int launch_link_fd(const launch_link *link)
{
    return link->event_fd;
}

launch_event launch_link_next(launch_link *link)
{
    launch_event event = LAUNCH_NO_EVENT;
    pthread_mutex_lock(&link->lock);
    if (link->x.n_events > 0) {
        event = link->x.events[0];
        link->x.n_events--;
        memmove(link->x.events, link->x.events + 1,
                (size_t)link->x.n_events * sizeof link->x.events[0]);
    } else {
        clear_fd(link->event_fd);
    }
    pthread_mutex_unlock(&link->lock);
    return event;
}

int launch_link_node(const launch_link *link)
{
    return link->x.node;
}

const char *launch_link_why(const launch_link *link)
{
    return link->x.why;
}

void launch_link_start(launch_link *link, int generation)
{
    pthread_mutex_lock(&link->lock);
    link->x.generation = generation;
    pthread_mutex_unlock(&link->lock);
}

void launch_link_trouble(launch_link *link)
{
    pthread_mutex_lock(&link->lock);
    link->x.trouble = true;
    pthread_mutex_unlock(&link->lock);
    raise_fd(link->order_fd);
}

void launch_link_end(launch_link *link, const launch_record *record)
{
    char *text = NULL;
    if (launch_record_write(record, &text) != STATUS_OK)
        LOG_E("%s", status_message());
    pthread_mutex_lock(&link->lock);
    free(link->x.end);
    link->x.end = text;
    pthread_mutex_unlock(&link->lock);
    raise_fd(link->order_fd);
}

launch_verdict launch_link_verdict(launch_link *link)
{
    pthread_mutex_lock(&link->lock);
    launch_verdict verdict = link->x.verdict;
    link->x.verdict = (launch_verdict){0};
    pthread_mutex_unlock(&link->lock);
    return verdict;
}

/* Node 0's store is there until everybody has read what it says. */
static void say_goodbye(launch_link *link)
{
    char key[LAUNCH_KEY_BYTES];
    int64_t said = 0, deadline_ns = clock_deadline_ns(LAUNCH_GOODBYE_MS);
    if (link->client == NULL || !link->told_verdict)
        return;
    int others = link->jury != NULL ? launch_jury_living(link->jury) - 1 : 0;
    key_of(link, "bye", -1, key);
    status st = store_add(link->client, key, link->server != NULL ? 0 : 1, &said);
    while (st == STATUS_OK && said < others && !clock_passed(deadline_ns)) {
        clock_sleep_ms(2);
        st = store_add(link->client, key, 0, &said);
    }
    if (st != STATUS_OK)
        LOG_D("goodbye to the other nodes: %s", status_message());
}

void launch_link_destroy(launch_link *link)
{
    if (link == NULL)
        return;
    struct timespec until;
    atomic_store(&link->quit, true);
    raise_fd(link->order_fd);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += QUIT_MS / 1000;
    if (pthread_timedjoin_np(link->thread, NULL, &until) != 0) {
        pthread_detach(link->thread); /* it waits for a name or a dead host; the process ends */
        return;
    }
    say_goodbye(link);
    free_link(link);
}
