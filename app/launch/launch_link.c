#include "app/launch/launch_link.h"

#include "app/launch/launch_agreement.h"
#include "app/launch/launch_join.h"
#include "app/launch/launch_jury.h"
#include "app/launch/launch_outbox.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { WHY_BYTES = 1024, QUIT_MS = 2000, RETRY_MS = 100 };

/* An event of this generation; LAUNCH_JOINED, _NOT_JOINED and _CUT_OFF are of any. */
typedef struct happening {
    launch_event event;
    int generation;
} happening;

/* What the launcher and the thread tell each other; all under the lock. */
typedef struct exchange {
    int generation;
    int troubled;        /* the last generation whose trouble was told; -1 */
    bool ended;          /* the generation has, and it is told how */
    happening events[4]; /* not yet taken */
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
    launch_outbox *outbox;
    int order_fd, event_fd; /* eventfds: something for the thread, for the launcher */
    atomic_bool quit;

    /* the thread's own */
    store *client;     /* NULL: to be connected again */
    launch_jury *jury; /* node 0, */
    char *judgement;   /* and its own verdict on this generation; NULL: none yet */
    int generation;    /* as in x when this turn began, */
    bool ended;        /* likewise */
    bool joined, knows_trouble;
    int told_verdict;       /* the last generation whose verdict the launcher has; -1 */
    int64_t beats, beat_ns; /* so many; when the next is due */
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
        link->x.events[link->x.n_events++] = (happening){event, link->generation};
    pthread_mutex_unlock(&link->lock);
    raise_fd(link->event_fd);
}

static void tell_failure(launch_link *link, launch_event event)
{
    pthread_mutex_lock(&link->lock);
    snprintf(link->x.why, sizeof link->x.why, "%s", status_text());
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

/* Any change of the value is a beat, whatever it was before. Whoever else serves the store keeps
 * only what its launchers say: see store_server_forget(). The first beat makes this connection one
 * of theirs. */
static status beat(launch_link *link)
{
    char key[LAUNCH_KEY_BYTES], text[32];
    if (link->beat_ns != 0 && !clock_passed(link->beat_ns))
        return STATUS_OK;
    link->beat_ns = clock_deadline_ns(link->joining.settings->plan.keep_alive_ms);
    key_of(link, "beat", own_node(link), key);
    int length = snprintf(text, sizeof text, "%lld", (long long)++link->beats);
    return store_set(link->client, key, text, (size_t)length);
}

static void begin_turn(launch_link *link)
{
    pthread_mutex_lock(&link->lock);
    if (link->x.generation != link->generation) {
        link->knows_trouble = false;
        free(link->judgement);
        link->judgement = NULL;
    }
    link->generation = link->x.generation;
    link->ended = link->x.ended;
    pthread_mutex_unlock(&link->lock);
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
    bool alarm = link->knows_trouble;
    char *judgement = NULL;
    if (link->jury == NULL)
        return STATUS_OK;
    TRY(launch_jury_hear(link->jury, link->client, link->generation, &alarm));
    if (alarm && !link->knows_trouble) {
        link->knows_trouble = true;
        tell(link, LAUNCH_TROUBLE);
    }
    TRY(launch_jury_judge(link->jury, link->client, link->server, link->generation, &judgement));
    if (judgement != NULL) {
        free(link->judgement);
        link->judgement = judgement;
    }
    return STATUS_OK;
}

/* Node 0 follows its own verdict, and the others what the store holds: *text, or NULL. */
static status find_verdict(launch_link *link, char **text)
{
    char key[LAUNCH_KEY_BYTES];
    bool there = false;
    *text = link->judgement;
    link->judgement = NULL;
    if (link->jury != NULL)
        return STATUS_OK;
    key_of(link, "verdict", link->generation, key);
    TRY(store_check(link->client, key, &there));
    void *value = NULL;
    size_t size_bytes;
    if (there)
        TRY(store_get(link->client, key, &value, &size_bytes));
    *text = value;
    return STATUS_OK;
}

static status look_for_verdict(launch_link *link)
{
    char *text = NULL;
    launch_verdict verdict;
    if (!link->ended || link->told_verdict == link->generation)
        return STATUS_OK;
    TRY(find_verdict(link, &text));
    if (text == NULL)
        return STATUS_OK;
    status st = launch_verdict_read(text, &verdict);
    free(text);
    if (st != STATUS_OK) {
        status_context(st, "node 0's verdict");
        tell_failure(link, LAUNCH_CUT_OFF);
        atomic_store(&link->quit, true); /* to ask again would not help */
        return STATUS_OK;
    }
    link->told_verdict = link->generation;
    pthread_mutex_lock(&link->lock);
    launch_verdict_free(&link->x.verdict);
    link->x.verdict = verdict;
    pthread_mutex_unlock(&link->lock);
    tell(link, LAUNCH_VERDICT);
    return STATUS_OK;
}

static status one_turn(launch_link *link)
{
    begin_turn(link);
    TRY(launch_outbox_send(link->outbox, link->client));
    TRY(beat(link));
    TRY(look_for_trouble(link));
    TRY(judge(link));
    return look_for_verdict(link);
}

/* Whether a failure, `st`, is final; then that is this thread's message. The connection may have
 * broken while node 0 is still there: that is believed for as long as a silent node is believed to
 * live, but not where its launcher is known to be gone. `answered`: something was said over a
 * connection.
 */
static bool gives_up(const launch_link *link, status st, bool answered, int64_t silent_since_ns)
{
    const launch_plan *plan = &link->joining.settings->plan;
    int64_t patience_ns = plan->keep_alive_ms * plan->keep_alive_misses * 1000000;
    double silent_s = clock_seconds(clock_now_ns() - silent_since_ns);
    char message[512];
    snprintf(message, sizeof message, "%s", status_text());
    if (st == STATUS_REFUSED)
        FAIL(STATUS_PEER,
             "node 0's launcher at %s:%d is gone: its own output says why, if anything does",
             plan->master_addr, link->joining.port);
    else if (clock_now_ns() - silent_since_ns <= patience_ns)
        return false;
    else
        FAIL(STATUS_PEER, "node 0 at %s:%d has not %s for %.1f s (%s)%s", plan->master_addr,
             link->joining.port, answered ? "given a useful answer" : "been reached", silent_s,
             message, answered ? "" : ": that machine is down, or the link to it");
    return true;
}

/* Turn after turn; each failure costs a connection and a pause, and only a turn that went well
 * renews the patience. */
static void watch(launch_link *link)
{
    struct pollfd order = {.fd = link->order_fd, .events = POLLIN};
    int interval_ms = (int)link->joining.settings->plan.monitor_ms;
    int64_t heard_ns = clock_now_ns();
    while (!atomic_load(&link->quit)) {
        bool reached = link->client != NULL;
        status st = reached ? one_turn(link) : launch_join_reach(&link->joining, &link->client);
        if (st == STATUS_OK && reached) {
            heard_ns = clock_now_ns();
            poll(&order, 1, interval_ms > 0 ? interval_ms : 1);
            clear_fd(link->order_fd);
        }
        if (st == STATUS_OK)
            continue;
        store_destroy(link->client);
        link->client = NULL;
        link->beat_ns = 0;
        if (gives_up(link, st, reached && st != STATUS_TIMEOUT, heard_ns)) {
            tell_failure(link, LAUNCH_CUT_OFF);
            return;
        }
        clock_sleep_ms(RETRY_MS);
    }
    if (link->client != NULL && launch_outbox_send(link->outbox, link->client) != STATUS_OK)
        LOG_D("last words to the other nodes: %s", status_text());
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
    link->joined = true;
    if (atomic_load(&link->quit)) /* too late not to join: it leaves again, in order */
        launch_link_end(link, &(launch_record){.result = LAUNCH_BROKEN});
    tell(link, LAUNCH_JOINED);
    watch(link);
    return NULL;
}

static void free_link(launch_link *link)
{
    store_destroy(link->client);
    launch_jury_destroy(link->jury);
    free(link->judgement);
    launch_verdict_free(&link->x.verdict);
    launch_outbox_destroy(link->outbox);
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
    link->joining.host = server != NULL ? store_server_host(server) : NULL;
    link->server = server;
    link->x.troubled = link->told_verdict = -1;
    pthread_mutex_init(&link->lock, NULL);
    link->order_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    link->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    status st = link->order_fd >= 0 && link->event_fd >= 0
                    ? STATUS_OK
                    : FAIL(STATUS_IO, "eventfd: %s", strerror(errno));
    if (st == STATUS_OK)
        st = launch_outbox_create(&link->outbox);
    if (st == STATUS_OK && server != NULL)
        st = store_server_keep(server, LAUNCH_KEYS);
    if (st == STATUS_OK)
        st = thread_start(run, link, "the link's", &link->thread);
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
    exchange *x = &link->x;
    happening found = {LAUNCH_NO_EVENT, 0};
    pthread_mutex_lock(&link->lock);
    while (found.event == LAUNCH_NO_EVENT && x->n_events > 0) {
        found = x->events[0];
        x->n_events--;
        memmove(x->events, x->events + 1, (size_t)x->n_events * sizeof x->events[0]);
        bool of_generation = found.event == LAUNCH_TROUBLE || found.event == LAUNCH_VERDICT;
        if (of_generation && found.generation != x->generation)
            found.event = LAUNCH_NO_EVENT;
    }
    if (found.event == LAUNCH_NO_EVENT)
        clear_fd(link->event_fd);
    pthread_mutex_unlock(&link->lock);
    return found.event;
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
    link->x.ended = false;
    pthread_mutex_unlock(&link->lock);
}

static void put(launch_link *link, const char *key, const char *text)
{
    if (launch_outbox_put(link->outbox, key, text) != STATUS_OK)
        LOG_E("%s", status_text());
    raise_fd(link->order_fd);
}

void launch_link_trouble(launch_link *link)
{
    char key[LAUNCH_KEY_BYTES], person[AGREEMENT_PERSON_BYTES], text[AGREEMENT_PERSON_BYTES + 32];
    pthread_mutex_lock(&link->lock);
    bool known = link->x.troubled == link->x.generation;
    link->x.troubled = link->x.generation;
    pthread_mutex_unlock(&link->lock);
    key_of(link, "trouble", link->x.troubled, key);
    if (known)
        return;
    launch_agreement_person(&link->joining.settings->plan, person);
    snprintf(text, sizeof text, "node %d (%s)", own_node(link), person);
    put(link, key, text);
}

void launch_link_stop(launch_link *link, int signal)
{
    char key[LAUNCH_KEY_BYTES], text[16];
    snprintf(text, sizeof text, "%d", signal);
    key_of(link, "stop", own_node(link), key);
    put(link, key, text);
}

void launch_link_end(launch_link *link, const launch_record *record)
{
    char key[LAUNCH_KEY_BYTES], name[64], *text = NULL;
    snprintf(name, sizeof name, "end/%d", link->x.generation);
    key_of(link, name, own_node(link), key);
    if (launch_record_write(record, &text) != STATUS_OK)
        LOG_E("%s", status_text());
    if (text != NULL)
        put(link, key, text);
    free(text);
    pthread_mutex_lock(&link->lock);
    link->x.ended = true;
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

/* Node 0's store is there until everybody has read what it says; where it cannot be known who has,
 * as long as for the last of them. */
static void say_goodbye(launch_link *link)
{
    char key[LAUNCH_KEY_BYTES];
    int64_t said = 0, deadline_ns = clock_deadline_ns(LAUNCH_GOODBYE_MS);
    bool waits = link->jury != NULL && link->told_verdict >= 0;
    if (link->client == NULL || !link->joined)
        return;
    int others = waits ? launch_jury_living(link->jury) - 1 : 0;
    key_of(link, "bye", -1, key);
    status st = store_add(link->client, key, link->server != NULL ? 0 : 1, &said);
    while (said < others && !clock_passed(deadline_ns)) {
        clock_sleep_ms(2);
        st = store_add(link->client, key, 0, &said);
    }
    if (st != STATUS_OK)
        LOG_D("goodbye to the other nodes: %s", status_text());
}

bool launch_link_destroy(launch_link *link)
{
    if (link == NULL)
        return true;
    struct timespec until;
    atomic_store(&link->quit, true);
    raise_fd(link->order_fd);
    clock_gettime(CLOCK_MONOTONIC, &until); /* the clock on the wall may be set meanwhile */
    until.tv_sec += QUIT_MS / 1000;
    if (pthread_clockjoin_np(link->thread, NULL, CLOCK_MONOTONIC, &until) != 0) {
        pthread_detach(link->thread); /* it waits for a name or a dead host; the process ends */
        return false;
    }
    say_goodbye(link);
    free_link(link);
    return true;
}
