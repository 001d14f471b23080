#include "app/launch/agent_channel.h"

#include "app/launch/coordinator.h"
#include "app/launch/launch_agreement.h"
#include "app/launch/launch_join.h"
#include "app/launch/send_queue.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "dist/membership/keys.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { WHY_BYTES = 1024, QUIT_MS = 2000, RETRY_MS = 100 };

/* An event of this attempt; CHANNEL_JOINED, _NOT_JOINED and _CUT_OFF are of any. */
typedef struct happening {
    agent_channel_event event;
    int attempt;
} happening;

/* What the launcher and the thread tell each other; all under the lock. */
typedef struct exchange {
    int attempt;
    int troubled;        /* the last attempt whose trouble was told; -1 */
    bool ended;          /* the attempt has, and it is told how */
    happening events[4]; /* not yet taken */
    int n_events;
    group_outcome outcome;
    char why[WHY_BYTES];
    int node;
} exchange;

struct agent_channel {
    launch_joining joining;
    store_server *server; /* node 0 */
    pthread_t thread;
    pthread_mutex_t lock;
    exchange x;
    send_queue *queue;
    int order_fd, event_fd; /* eventfds: something for the thread, for the launcher */
    atomic_bool quit;

    /* the thread's own */
    store *client;            /* NULL: to be connected again */
    coordinator *coordinator; /* node 0, */
    char *decided;            /* and its own outcome on this attempt; NULL: none yet */
    int attempt;              /* as in x when this turn began, */
    bool ended;               /* likewise */
    bool joined, knows_trouble;
    int told_outcome;       /* the last attempt whose outcome the launcher has; -1 */
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

static void tell(agent_channel *channel, agent_channel_event event)
{
    pthread_mutex_lock(&channel->lock);
    if (channel->x.n_events < (int)(sizeof channel->x.events / sizeof channel->x.events[0]))
        channel->x.events[channel->x.n_events++] = (happening){event, channel->attempt};
    pthread_mutex_unlock(&channel->lock);
    raise_fd(channel->event_fd);
}

static void tell_failure(agent_channel *channel, agent_channel_event event)
{
    pthread_mutex_lock(&channel->lock);
    snprintf(channel->x.why, sizeof channel->x.why, "%s", status_text());
    pthread_mutex_unlock(&channel->lock);
    tell(channel, event);
}

static int own_node(agent_channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    int node = channel->x.node;
    pthread_mutex_unlock(&channel->lock);
    return node;
}

/* Any change of the value is a beat, whatever it was before. Whoever else serves the store keeps
 * only what its launchers say: see store_server_forget(). The first beat makes this connection one
 * of theirs. */
static status beat(agent_channel *channel)
{
    char text[32];
    if (channel->beat_ns != 0 && !clock_passed(channel->beat_ns))
        return STATUS_OK;
    channel->beat_ns = clock_deadline_ns(channel->joining.spec->keep_alive_ms);
    keys_text key = keys_make(channel->joining.prefix, KEYS_HEARTBEAT, own_node(channel));
    int length = snprintf(text, sizeof text, "%lld", (long long)++channel->beats);
    return store_set(channel->client, key.text, text, (size_t)length);
}

static void begin_turn(agent_channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    if (channel->x.attempt != channel->attempt) {
        channel->knows_trouble = false;
        free(channel->decided);
        channel->decided = NULL;
    }
    channel->attempt = channel->x.attempt;
    channel->ended = channel->x.ended;
    pthread_mutex_unlock(&channel->lock);
}

static status look_for_trouble(agent_channel *channel)
{
    bool there = false;
    if (channel->knows_trouble)
        return STATUS_OK;
    keys_text key = keys_make(channel->joining.prefix, KEYS_TROUBLE, channel->attempt);
    TRY(store_check(channel->client, key.text, &there));
    if (!there)
        return STATUS_OK;
    channel->knows_trouble = true;
    tell(channel, CHANNEL_TROUBLE);
    return STATUS_OK;
}

/* Node 0 hears the others and judges. */
static status judge(agent_channel *channel)
{
    bool alarm = channel->knows_trouble;
    char *decided = NULL;
    if (channel->coordinator == NULL)
        return STATUS_OK;
    TRY(coordinator_hear(channel->coordinator, channel->client, channel->attempt, &alarm));
    if (alarm && !channel->knows_trouble) {
        channel->knows_trouble = true;
        tell(channel, CHANNEL_TROUBLE);
    }
    TRY(coordinator_decide(channel->coordinator, channel->client, channel->server, channel->attempt,
                           &decided));
    if (decided != NULL) {
        free(channel->decided);
        channel->decided = decided;
    }
    return STATUS_OK;
}

/* Node 0 follows its own outcome, and the others what the store holds: *text, or NULL. */
static status find_outcome(agent_channel *channel, char **text)
{
    *text = channel->decided;
    channel->decided = NULL;
    if (channel->coordinator != NULL)
        return STATUS_OK;
    keys_text key = keys_make(channel->joining.prefix, KEYS_OUTCOME, channel->attempt);
    return store_try_get(channel->client, key.text, text);
}

static status look_for_outcome(agent_channel *channel)
{
    char *text = NULL;
    group_outcome outcome;
    if (!channel->ended || channel->told_outcome == channel->attempt)
        return STATUS_OK;
    TRY(find_outcome(channel, &text));
    if (text == NULL)
        return STATUS_OK;
    status st = group_outcome_read(text, &outcome);
    free(text);
    if (st != STATUS_OK) {
        status_context(st, "node 0's outcome");
        tell_failure(channel, CHANNEL_CUT_OFF);
        atomic_store(&channel->quit, true); /* to ask again would not help */
        return STATUS_OK;
    }
    channel->told_outcome = channel->attempt;
    pthread_mutex_lock(&channel->lock);
    group_outcome_free(&channel->x.outcome);
    channel->x.outcome = outcome;
    pthread_mutex_unlock(&channel->lock);
    tell(channel, CHANNEL_OUTCOME);
    return STATUS_OK;
}

static status one_turn(agent_channel *channel)
{
    begin_turn(channel);
    TRY(send_queue_send(channel->queue, channel->client));
    TRY(beat(channel));
    TRY(look_for_trouble(channel));
    TRY(judge(channel));
    return look_for_outcome(channel);
}

/* Whether a failure, `st`, is final; then that is this thread's message. The connection may have
 * broken while node 0 is still there: that is believed for as long as a silent node is believed to
 * live, but not where its launcher is known to be gone. `answered`: something was said over a
 * connection.
 */
static bool gives_up(const agent_channel *channel, status st, bool answered,
                     int64_t silent_since_ns)
{
    const worker_spec *spec = channel->joining.spec;
    int64_t patience_ns = spec->keep_alive_ms * spec->keep_alive_misses * 1000000;
    double silent_s = clock_seconds(clock_now_ns() - silent_since_ns);
    char message[512];
    snprintf(message, sizeof message, "%s", status_text());
    if (st == STATUS_REFUSED)
        FAIL(STATUS_PEER,
             "node 0's launcher at %s:%d is gone: its own output says why, if anything does",
             spec->master_addr, channel->joining.port);
    else if (clock_now_ns() - silent_since_ns <= patience_ns)
        return false;
    else
        FAIL(STATUS_PEER, "node 0 at %s:%d has not %s for %.1f s (%s)%s", spec->master_addr,
             channel->joining.port, answered ? "given a useful answer" : "been reached", silent_s,
             message, answered ? "" : ": that machine is down, or the link to it");
    return true;
}

/* Turn after turn; each failure costs a connection and a pause, and only a turn that went well
 * renews the patience. */
static void watch(agent_channel *channel)
{
    struct pollfd order = {.fd = channel->order_fd, .events = POLLIN};
    int interval_ms = (int)channel->joining.spec->monitor_ms;
    int64_t heard_ns = clock_now_ns();
    while (!atomic_load(&channel->quit)) {
        bool reached = channel->client != NULL;
        status st =
            reached ? one_turn(channel) : launch_join_reach(&channel->joining, &channel->client);
        if (st == STATUS_OK && reached) {
            heard_ns = clock_now_ns();
            poll(&order, 1, interval_ms > 0 ? interval_ms : 1);
            clear_fd(channel->order_fd);
        }
        if (st == STATUS_OK)
            continue;
        store_destroy(channel->client);
        channel->client = NULL;
        channel->beat_ns = 0;
        if (gives_up(channel, st, reached && st != STATUS_TIMEOUT, heard_ns)) {
            tell_failure(channel, CHANNEL_CUT_OFF);
            return;
        }
        clock_sleep_ms(RETRY_MS);
    }
    if (channel->client != NULL && send_queue_send(channel->queue, channel->client) != STATUS_OK)
        LOG_D("last words to the other nodes: %s", status_text());
}

static void *run(void *arg)
{
    agent_channel *channel = arg;
    int node = 0;
    status st = launch_join_connect(&channel->joining, &channel->client);
    if (st == STATUS_OK)
        st = launch_join_meet(&channel->joining, channel->client, &node);
    if (st == STATUS_OK && node == 0)
        st = coordinator_create(&channel->joining, &channel->coordinator);
    if (st != STATUS_OK) {
        tell_failure(channel, CHANNEL_NOT_JOINED);
        return NULL;
    }
    pthread_mutex_lock(&channel->lock);
    channel->x.node = node;
    pthread_mutex_unlock(&channel->lock);
    channel->joined = true;
    if (atomic_load(&channel->quit)) /* too late not to join: it leaves again, in order */
        agent_channel_tell_report(channel, &(node_report){.state = AGENT_BROKEN});
    tell(channel, CHANNEL_JOINED);
    watch(channel);
    return NULL;
}

static void free_link(agent_channel *channel)
{
    store_destroy(channel->client);
    coordinator_destroy(channel->coordinator);
    free(channel->decided);
    group_outcome_free(&channel->x.outcome);
    send_queue_destroy(channel->queue);
    pthread_mutex_destroy(&channel->lock);
    if (channel->order_fd >= 0)
        close(channel->order_fd);
    if (channel->event_fd >= 0)
        close(channel->event_fd);
    free(channel);
}

status agent_channel_create(const worker_spec *spec, store_server *server, int port,
                            agent_channel **out)
{
    agent_channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL)
        return FAIL(STATUS_NO_MEMORY, "the link to the other nodes");
    channel->joining = (launch_joining){
        .spec = spec, .serves = server != NULL, .port = port, .quit = &channel->quit};
    snprintf(channel->joining.prefix, sizeof channel->joining.prefix, "%s/", spec->run_id);
    channel->joining.host = server != NULL ? store_server_host(server) : NULL;
    channel->server = server;
    channel->x.troubled = channel->told_outcome = -1;
    pthread_mutex_init(&channel->lock, NULL);
    channel->order_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    channel->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    status st = channel->order_fd >= 0 && channel->event_fd >= 0
                    ? STATUS_OK
                    : FAIL(STATUS_IO, "eventfd: %s", strerror(errno));
    if (st == STATUS_OK)
        st = send_queue_create(&channel->queue);
    if (st == STATUS_OK && server != NULL)
        st = store_server_keep(server, LAUNCH_KEYS);
    if (st == STATUS_OK)
        st = thread_start(run, channel, "the link's", &channel->thread);
    if (st == STATUS_OK)
        *out = channel;
    else
        free_link(channel);
    return st;
}

int agent_channel_fd(const agent_channel *channel)
{
    return channel->event_fd;
}

agent_channel_event agent_channel_next(agent_channel *channel)
{
    exchange *x = &channel->x;
    happening found = {CHANNEL_NO_EVENT, 0};
    pthread_mutex_lock(&channel->lock);
    while (found.event == CHANNEL_NO_EVENT && x->n_events > 0) {
        found = x->events[0];
        x->n_events--;
        memmove(x->events, x->events + 1, (size_t)x->n_events * sizeof x->events[0]);
        bool of_attempt = found.event == CHANNEL_TROUBLE || found.event == CHANNEL_OUTCOME;
        if (of_attempt && found.attempt != x->attempt)
            found.event = CHANNEL_NO_EVENT;
    }
    if (found.event == CHANNEL_NO_EVENT)
        clear_fd(channel->event_fd);
    pthread_mutex_unlock(&channel->lock);
    return found.event;
}

int agent_channel_node(const agent_channel *channel)
{
    return channel->x.node;
}

const char *agent_channel_why(const agent_channel *channel)
{
    return channel->x.why;
}

void agent_channel_start(agent_channel *channel, int attempt)
{
    pthread_mutex_lock(&channel->lock);
    channel->x.attempt = attempt;
    channel->x.ended = false;
    pthread_mutex_unlock(&channel->lock);
}

static void put(agent_channel *channel, const char *key, const char *text)
{
    if (send_queue_put(channel->queue, key, text) != STATUS_OK)
        LOG_E("%s", status_text());
    raise_fd(channel->order_fd);
}

void agent_channel_tell_trouble(agent_channel *channel)
{
    char person[AGREEMENT_PERSON_BYTES], text[AGREEMENT_PERSON_BYTES + 32];
    pthread_mutex_lock(&channel->lock);
    bool known = channel->x.troubled == channel->x.attempt;
    channel->x.troubled = channel->x.attempt;
    pthread_mutex_unlock(&channel->lock);
    keys_text key = keys_make(channel->joining.prefix, KEYS_TROUBLE, channel->x.troubled);
    if (known)
        return;
    launch_agreement_person(channel->joining.spec, person);
    snprintf(text, sizeof text, "node %d (%s)", own_node(channel), person);
    put(channel, key.text, text);
}

void agent_channel_tell_stop(agent_channel *channel, int signal)
{
    char text[16];
    snprintf(text, sizeof text, "%d", signal);
    keys_text key = keys_make(channel->joining.prefix, KEYS_STOP, own_node(channel));
    put(channel, key.text, text);
}

void agent_channel_tell_report(agent_channel *channel, const node_report *report)
{
    char *text = NULL;
    keys_text key =
        keys_make_of(channel->joining.prefix, KEYS_REPORT, channel->x.attempt, own_node(channel));
    if (node_report_write(report, &text) != STATUS_OK)
        LOG_E("%s", status_text());
    if (text != NULL)
        put(channel, key.text, text);
    free(text);
    pthread_mutex_lock(&channel->lock);
    channel->x.ended = true;
    pthread_mutex_unlock(&channel->lock);
    raise_fd(channel->order_fd);
}

group_outcome agent_channel_outcome(agent_channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    group_outcome outcome = channel->x.outcome;
    channel->x.outcome = (group_outcome){0};
    pthread_mutex_unlock(&channel->lock);
    return outcome;
}

/* Node 0's store is there until everybody has read what it says; where it cannot be known who has,
 * as long as for the last of them. */
static void say_goodbye(agent_channel *channel)
{
    int64_t said = 0, deadline_ns = clock_deadline_ns(CHANNEL_GOODBYE_MS);
    bool waits = channel->coordinator != NULL && channel->told_outcome >= 0;
    if (channel->client == NULL || !channel->joined)
        return;
    int others = waits ? coordinator_count_living(channel->coordinator) - 1 : 0;
    keys_text key = keys_make(channel->joining.prefix, KEYS_BYE, -1);
    status st = store_add(channel->client, key.text, channel->server != NULL ? 0 : 1, &said);
    while (said < others && !clock_passed(deadline_ns)) {
        clock_sleep_ms(2);
        st = store_add(channel->client, key.text, 0, &said);
    }
    if (st != STATUS_OK)
        LOG_D("goodbye to the other nodes: %s", status_text());
}

bool agent_channel_destroy(agent_channel *channel)
{
    if (channel == NULL)
        return true;
    struct timespec until;
    atomic_store(&channel->quit, true);
    raise_fd(channel->order_fd);
    clock_gettime(CLOCK_MONOTONIC, &until); /* the clock on the wall may be set meanwhile */
    until.tv_sec += QUIT_MS / 1000;
    if (pthread_clockjoin_np(channel->thread, NULL, CLOCK_MONOTONIC, &until) != 0) {
        pthread_detach(channel->thread); /* it waits for a name or a dead host; the process ends */
        return false;
    }
    say_goodbye(channel);
    free_link(channel);
    return true;
}
