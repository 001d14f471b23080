#include "app/launch/agent_channel.h"

#include "app/launch/agent_rendezvous.h"
#include "app/launch/coordinator.h"
#include "app/launch/outbox.h"
#include "base/clock.h"
#include "base/host.h"
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

enum {
    WHY_BYTES = 1024,
    QUIT_MS = 2000,
    RETRY_MS = 100,
    COME_MS = 5000, /* elastic: so long a node may take to come, if its lease is as long */
};

/* What the agent and the thread share, under the lock. But each of them reads without it what it
 * alone sets. Once the thread has ended, the agent needs no lock. */
typedef struct shared_state {
    /* The agent's. */
    int attempt;
    bool reported;    /* it has told how the attempt ended here */
    int told_trouble; /* the last attempt whose trouble it has told; -1. Without the lock */

    /* The thread's. */
    bool joined;
    status failed;         /* `why`; STATUS_OK: not */
    bool finished;         /* it touches the channel no more */
    int trouble_attempt;   /* the last one that is known to be in trouble; -1 */
    int outcome_attempt;   /* the last one whose outcome is known; -1 */
    group_outcome outcome; /* of that one, until the agent takes it */
} shared_state;

struct agent_channel {
    agent_rendezvous rdzv;
    worker_spec spec; /* owns its `nprocs`, and nothing else. Elastic: rdzv.lost is owned, too */
    pthread_t thread;
    pthread_mutex_t lock;
    shared_state shared;
    outbox outbox;           /* the agent puts, the thread sends */
    int agent_fd, thread_fd; /* eventfds: wake the agent, the thread */
    atomic_bool quit;
    atomic_bool join_cancelled; /* what rdzv.quit points to; set whenever `quit` is */

    /* The thread's; the agent reads `why` and the lease's member after it was told. */
    lease own; /* on this node's number */
    char why[WHY_BYTES];

    /* The thread's own. */
    store *client;            /* NULL: to be connected again */
    coordinator *coordinator; /* node 0 */
    int attempt;              /* as in `shared` when this turn began */
    bool reported;            /* likewise */
    int64_t heartbeat_ns;     /* when the next one is due */
    int64_t stopped_ns;       /* how long this process did not run, since the last good turn; 0 */
};

/* The thread tells the agent that this attempt is in trouble. */
static void set_trouble(agent_channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    channel->shared.trouble_attempt = channel->attempt;
    pthread_mutex_unlock(&channel->lock);
    eventfd_write(channel->agent_fd, 1);
}

/* The thread tells the agent this attempt's outcome, and hands it over. */
static void set_outcome(agent_channel *channel, const group_outcome *outcome)
{
    pthread_mutex_lock(&channel->lock);
    group_outcome_free(&channel->shared.outcome);
    channel->shared.outcome = *outcome;
    channel->shared.outcome_attempt = channel->attempt;
    pthread_mutex_unlock(&channel->lock);
    eventfd_write(channel->agent_fd, 1);
}

/* The thread tells the agent that nothing more will come. The thread's latest message says why. */
static void set_failure(agent_channel *channel, status st)
{
    snprintf(channel->why, sizeof channel->why, "%s", status_text());
    if (st == STATUS_REFUSED && channel->rdzv.lost != NULL)
        channel->rdzv.lost[0] = true;
    pthread_mutex_lock(&channel->lock);
    channel->shared.failed = st;
    pthread_mutex_unlock(&channel->lock);
    eventfd_write(channel->agent_fd, 1);
}

static void put(agent_channel *channel, keys_text key, const char *text)
{
    outbox_put(&channel->outbox, key, text);
    eventfd_write(channel->thread_fd, 1);
}

/* The first one on a connection also makes it an agent's: store_server_forget() ends the workers'
 * connections, and not those. And node 0 sees when it closes. */
static status send_heartbeat(agent_channel *channel)
{
    if (channel->heartbeat_ns != 0 && !clock_passed(channel->heartbeat_ns))
        return STATUS_OK;
    if (channel->heartbeat_ns == 0) {
        TRY(agent_rendezvous_show(&channel->rdzv, channel->client, channel->own.member));
        outbox_repeat(&channel->outbox); /* a report counts over the heartbeat's connection only */
    }
    channel->heartbeat_ns = clock_deadline_ns(channel->rdzv.spec->keep_alive_ms);
    return lease_renew(&channel->own, channel->client);
}

static status look_for_trouble(agent_channel *channel)
{
    bool there = false;
    if (channel->shared.trouble_attempt == channel->attempt)
        return STATUS_OK;
    keys_text key = keys_make(channel->rdzv.prefix, KEYS_TROUBLE, channel->attempt);
    TRY(store_check(channel->client, key.text, &there));
    if (there)
        set_trouble(channel);
    return STATUS_OK;
}

/* Node 0 hears the others and decides. It believes itself, not what the store holds. */
static status coordinate(agent_channel *channel)
{
    bool known = channel->shared.trouble_attempt == channel->attempt, trouble = known,
         decided = false;
    group_outcome outcome;
    TRY(coordinator_hear(channel->coordinator, channel->client, channel->attempt, &trouble));
    if (trouble && !known)
        set_trouble(channel);
    TRY(coordinator_decide(channel->coordinator, channel->client, &decided, &outcome));
    if (decided)
        set_outcome(channel, &outcome);
    return STATUS_OK;
}

/* The others look for the outcome once they have reported. */
static status look_for_outcome(agent_channel *channel)
{
    char *text = NULL;
    group_outcome outcome;
    if (!channel->reported || channel->shared.outcome_attempt == channel->attempt)
        return STATUS_OK;
    keys_text key = keys_make(channel->rdzv.prefix, KEYS_OUTCOME, channel->attempt);
    TRY(store_try_get(channel->client, key.text, &text));
    if (text == NULL)
        return STATUS_OK;
    status st = group_outcome_read(text, &outcome);
    free(text);
    if (st == STATUS_OK) {
        set_outcome(channel, &outcome);
        return STATUS_OK;
    }
    set_failure(channel, status_context(st, "node 0's outcome"));
    atomic_store(&channel->quit, true); /* to ask again would not help */
    return STATUS_OK;
}

static status one_turn(agent_channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    channel->attempt = channel->shared.attempt;
    channel->reported = channel->shared.reported;
    pthread_mutex_unlock(&channel->lock);
    TRY(send_heartbeat(channel));
    TRY(outbox_send(&channel->outbox, channel->client));
    TRY(look_for_trouble(channel));
    return channel->coordinator != NULL ? coordinate(channel) : look_for_outcome(channel);
}

/* Whether a failure, `st`, is final; then that is this thread's message. The connection may have
 * broken while node 0 is still there: that is believed for as long as a silent node is believed to
 * live, but not if its agent is known to be gone. `answered`: something was said over a connection.
 */
static bool gives_up(const agent_channel *channel, status st, bool answered,
                     int64_t silent_since_ns)
{
    const worker_spec *spec = channel->rdzv.spec;
    int64_t patience_ns = spec->keep_alive_ms * spec->keep_alive_misses * 1000000;
    char why[512];
    if (st == STATUS_INVALID) /* another agent has this node's number */
        return true;
    snprintf(why, sizeof why, "%s", status_text());
    if (channel->stopped_ns > patience_ns / 2) /* the last heartbeat was a little before that */
        FAIL(
            STATUS_PEER,
            "this node's launcher did not run for %.1f s (was it stopped, or its machine asleep?): "
            "node 0 takes a node for lost after %.3g s (--rdzv-conf=keep_alive_interval=%.3g,"
            "keep_alive_max_attempt=%d)",
            clock_seconds(channel->stopped_ns), clock_seconds(patience_ns),
            (double)spec->keep_alive_ms * 1e-3, spec->keep_alive_misses);
    else if (st == STATUS_REFUSED)
        FAIL(STATUS_PEER,
             "node 0's launcher at %s:%d is gone: its own output says why, if anything does",
             spec->master_addr, spec->master_port);
    else if (clock_now_ns() - silent_since_ns <= patience_ns)
        return false;
    else
        FAIL(STATUS_PEER, "node 0 at %s:%d has not %s for %.1f s (%s)%s", spec->master_addr,
             spec->master_port, answered ? "given a useful answer" : "been reached",
             clock_seconds(clock_now_ns() - silent_since_ns), why,
             answered ? "" : ": that machine is down, or the link to it");
    return true;
}

/* Turn after turn; each failure costs a connection and a pause, and only a turn that went well
 * renews the patience. */
static void serve(agent_channel *channel)
{
    struct pollfd order = {.fd = channel->thread_fd, .events = POLLIN};
    int interval_ms = (int)channel->rdzv.spec->monitor_ms;
    int64_t heard_ns = clock_now_ns();
    eventfd_t woken;
    while (!atomic_load(&channel->quit)) {
        bool reached = channel->client != NULL;
        status st =
            reached ? one_turn(channel) : agent_rendezvous_reach(&channel->rdzv, &channel->client);
        if (st == STATUS_OK && reached) {
            heard_ns = clock_now_ns();
            poll(&order, 1, interval_ms > 0 ? interval_ms : 1);
            channel->stopped_ns = clock_now_ns() - heard_ns - interval_ms * INT64_C(1000000);
            eventfd_read(channel->thread_fd, &woken);
        }
        if (st == STATUS_OK)
            continue;
        store_destroy(channel->client);
        channel->client = NULL;
        channel->heartbeat_ns = 0;
        if (gives_up(channel, st, reached && st != STATUS_TIMEOUT, heard_ns)) {
            set_failure(channel, st);
            return;
        }
        clock_sleep_ms(RETRY_MS);
    }
    if (channel->client != NULL && outbox_send(&channel->outbox, channel->client) != STATUS_OK)
        LOG_D("last words to the other nodes: %s", status_text());
}

static void join_and_serve(agent_channel *channel)
{
    status st = agent_rendezvous_join(&channel->rdzv, &channel->client, &channel->own);
    if (st == STATUS_OK && channel->own.member == 0)
        st = coordinator_create(&channel->rdzv, &channel->coordinator);
    if (st != STATUS_OK) {
        set_failure(channel, st);
        return;
    }
    if (atomic_load(&channel->quit)) /* too late not to join: it leaves again, in order */
        agent_channel_tell_report(channel, &(node_report){.state = AGENT_BROKEN});
    pthread_mutex_lock(&channel->lock);
    channel->shared.joined = true;
    pthread_mutex_unlock(&channel->lock);
    eventfd_write(channel->agent_fd, 1);
    serve(channel);
}

static void *run(void *arg)
{
    agent_channel *channel = arg;
    join_and_serve(channel);
    pthread_mutex_lock(&channel->lock);
    channel->shared.finished = true;
    eventfd_write(channel->agent_fd, 1);
    pthread_mutex_unlock(&channel->lock);
    return NULL;
}

static void free_channel(agent_channel *channel)
{
    store_destroy(channel->client);
    coordinator_destroy(channel->coordinator);
    group_outcome_free(&channel->shared.outcome);
    outbox_close(&channel->outbox);
    pthread_mutex_destroy(&channel->lock);
    if (channel->thread_fd >= 0)
        close(channel->thread_fd);
    if (channel->agent_fd >= 0)
        close(channel->agent_fd);
    free((int *)channel->spec.nprocs);
    free(channel->rdzv.lost);
    free(channel);
}

/* Elastic: node 0 names who has not come in half of a lease, and the next round is without them.
 * Who lives is a newcomer then. The others wait for its word. */
static int64_t time_to_come_ms(const agent_channel *channel)
{
    const worker_spec *spec = &channel->spec;
    int64_t lease_ms = spec->keep_alive_ms * spec->keep_alive_misses, half_ms = lease_ms / 2;
    if (channel->rdzv.server == NULL || lease_ms < COME_MS)
        return channel->rdzv.server == NULL ? 2 * lease_ms : lease_ms;
    return half_ms > COME_MS ? half_ms : COME_MS;
}

/* A copy: the agent goes on to the next round, and the thread may hang in this one. */
static status take_spec(agent_channel *channel, const worker_spec *spec)
{
    char *prefix = channel->rdzv.prefix;
    channel->spec = *spec;
    channel->spec.nprocs = NULL;
    if (!worker_spec_is_elastic(spec)) {
        snprintf(prefix, sizeof channel->rdzv.prefix, "%s/", spec->run_id);
        return STATUS_OK;
    }
    size_t bytes = (size_t)spec->nnodes * sizeof *spec->nprocs;
    int *nprocs = malloc(bytes);
    channel->spec.nprocs = nprocs;
    channel->rdzv.lost = calloc((size_t)spec->nnodes, sizeof *channel->rdzv.lost);
    if (nprocs == NULL || channel->rdzv.lost == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d nodes", spec->nnodes);
    memcpy(nprocs, spec->nprocs, bytes);
    channel->spec.join_ms = time_to_come_ms(channel);
    snprintf(prefix, sizeof channel->rdzv.prefix, "%s/%lld/", spec->run_id, (long long)spec->round);
    return STATUS_OK;
}

/* Of an elastic job only the round's: those of ended rounds go with what its ranks have left. */
static status keep_keys(const agent_channel *channel)
{
    char prefix[sizeof AGENT_KEYS + sizeof channel->rdzv.prefix];
    snprintf(prefix, sizeof prefix, "%s%s", AGENT_KEYS,
             worker_spec_is_elastic(&channel->spec) ? channel->rdzv.prefix : "");
    return store_server_keep(channel->rdzv.server, prefix);
}

status agent_channel_create(const worker_spec *spec, store_server *server, agent_channel **out)
{
    agent_channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL)
        return FAIL(STATUS_NO_MEMORY, "the channel to the other nodes");
    channel->rdzv = (agent_rendezvous){
        .spec = &channel->spec, .server = server, .quit = &channel->join_cancelled};
    channel->agent_fd = channel->thread_fd = -1;
    channel->shared =
        (shared_state){.told_trouble = -1, .trouble_attempt = -1, .outcome_attempt = -1};
    pthread_mutex_init(&channel->lock, NULL);
    outbox_init(&channel->outbox);
    status st = take_spec(channel, spec);
    if (st == STATUS_OK) {
        channel->thread_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        channel->agent_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (channel->thread_fd < 0 || channel->agent_fd < 0)
            st = FAIL(STATUS_IO, "eventfd: %s", file_limit_reason(errno));
    }
    if (st == STATUS_OK && server != NULL)
        st = keep_keys(channel);
    if (st == STATUS_OK)
        st = thread_start(run, channel, "the agent channel's", &channel->thread);
    if (st == STATUS_OK)
        *out = channel;
    else
        free_channel(channel);
    return st;
}

int agent_channel_fd(const agent_channel *channel)
{
    return channel->agent_fd;
}

agent_channel_snapshot agent_channel_look(agent_channel *channel)
{
    const shared_state *s = &channel->shared;
    eventfd_t woken;
    pthread_mutex_lock(&channel->lock);
    eventfd_read(channel->agent_fd, &woken);
    agent_channel_snapshot now = {.joined = s->joined,
                                  .nnodes = s->joined ? channel->spec.nnodes : 0,
                                  .failure = s->failed != STATUS_OK ? channel->why : NULL,
                                  .unfit = s->failed == STATUS_INVALID,
                                  .lost = s->failed != STATUS_OK ? channel->rdzv.lost : NULL,
                                  .in_trouble = s->trouble_attempt == s->attempt,
                                  .has_outcome = s->outcome_attempt == s->attempt};
    pthread_mutex_unlock(&channel->lock);
    return now;
}

void agent_channel_start(agent_channel *channel, int attempt)
{
    pthread_mutex_lock(&channel->lock);
    channel->shared.attempt = attempt;
    channel->shared.reported = false;
    if (!worker_spec_is_elastic(&channel->spec))
        channel->spec.restarts = attempt;
    pthread_mutex_unlock(&channel->lock);
}

void agent_channel_tell_trouble(agent_channel *channel)
{
    char who[LEASE_WHO_BYTES], text[LEASE_WHO_BYTES + 32];
    shared_state *s = &channel->shared;
    if (s->told_trouble == s->attempt)
        return;
    s->told_trouble = s->attempt;
    agent_rendezvous_who(channel->rdzv.spec, who);
    snprintf(text, sizeof text, "node %d (%s)", channel->own.member, who);
    put(channel, keys_make(channel->rdzv.prefix, KEYS_TROUBLE, s->attempt), text);
}

void agent_channel_tell_stop(agent_channel *channel, int signal)
{
    char text[16];
    snprintf(text, sizeof text, "%d", signal);
    put(channel, keys_make(channel->rdzv.prefix, KEYS_STOP, channel->own.member), text);
}

void agent_channel_tell_report(agent_channel *channel, const node_report *report)
{
    char *text = NULL;
    keys_text key = keys_make_of(channel->rdzv.prefix, KEYS_REPORT, channel->shared.attempt,
                                 channel->own.member);
    if (node_report_write(report, &text) == STATUS_OK)
        outbox_put_lasting(&channel->outbox, key, text);
    else
        LOG_E("%s", status_text());
    free(text);
    pthread_mutex_lock(&channel->lock);
    channel->shared.reported = true;
    pthread_mutex_unlock(&channel->lock);
    eventfd_write(channel->thread_fd, 1);
}

group_outcome agent_channel_take_outcome(agent_channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    group_outcome outcome = channel->shared.outcome;
    channel->shared.outcome = (group_outcome){0};
    pthread_mutex_unlock(&channel->lock);
    return outcome;
}

/* Node 0's store is there until all others have read what it says; if it cannot be known who has,
 * as long as for the last of them. */
static void say_goodbye(agent_channel *channel)
{
    int64_t said = 0, deadline_ns = clock_deadline_ns(CHANNEL_GOODBYE_MS);
    bool waits = channel->coordinator != NULL && channel->shared.outcome_attempt >= 0;
    if (channel->client == NULL || !channel->shared.joined)
        return;
    int others = waits ? coordinator_count_living(channel->coordinator) - 1 : 0;
    keys_text key = keys_make(channel->rdzv.prefix, KEYS_BYE, -1);
    status st = store_add(channel->client, key.text, channel->rdzv.server != NULL ? 0 : 1, &said);
    while (said < others && !clock_passed(deadline_ns)) {
        clock_sleep_ms(2);
        st = store_add(channel->client, key.text, 0, &said);
    }
    if (st != STATUS_OK)
        LOG_D("goodbye to the other nodes: %s", status_text());
}

void agent_channel_cancel_join(agent_channel *channel)
{
    atomic_store(&channel->join_cancelled, true);
}

/* Waits QUIT_MS at most for the thread's end. */
static bool join_thread(agent_channel *channel)
{
    int64_t deadline_ns = clock_deadline_ns(QUIT_MS);
    struct pollfd wake = {.fd = channel->agent_fd, .events = POLLIN};
    eventfd_t count;
    for (;;) {
        pthread_mutex_lock(&channel->lock);
        bool finished = channel->shared.finished;
        pthread_mutex_unlock(&channel->lock);
        if (finished)
            return pthread_join(channel->thread, NULL) == 0;
        if (clock_passed(deadline_ns))
            return false;
        poll(&wake, 1, clock_remaining_ms(deadline_ns));
        eventfd_read(channel->agent_fd, &count);
    }
}

bool agent_channel_destroy(agent_channel *channel)
{
    if (channel == NULL)
        return true;
    atomic_store(&channel->join_cancelled, true);
    atomic_store(&channel->quit, true);
    eventfd_write(channel->thread_fd, 1);
    if (!join_thread(channel)) {
        pthread_detach(channel->thread); /* it waits for a name or a dead host; the process ends */
        return false;
    }
    say_goodbye(channel);
    free_channel(channel);
    return true;
}
