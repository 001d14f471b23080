#include "dist/elastic/rdzv.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "dist/membership/keys.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    LOOK_MS = 1000,        /* one look waits so long: a service that has gone is noticed */
    FIRST = 8,             /* so many nodes always look at all nodes */
    LOOK_AT_ALL_MS = 5000, /* between two looks of another node at all nodes */
    PER_NODE_MS = 25,      /* more for each node there, so that all nodes ask 40 times a second */
    CROWD = 32,            /* nodes: of more than these not every change is looked at */
    RETRY_MS = 100,        /* after a call that has failed; then it doubles */
    RETRY_MOST_MS = 1000,  /* it doubles no further */
    HEAD_BYTES = 24,       /* shown of what lies at the state's key and is none */
    SMOOTH_CALLS = 8,      /* over so many a call's time is smoothed */
    SLOW_CALLS = 8,        /* a service is slow if fewer calls fit into a lease */
    SILENT_MS = 5000,   /* after so long without an answer, a line says that there is one again */
    SAY_MS = 5000,      /* between two lines about what is missing */
    FAREWELL_MS = 1000, /* for closing the job, at the end */
};

static const int64_t NS_PER_MS = 1000000;

static void wait_on(int wake_fd, int64_t ms)
{
    struct pollfd wake = {.fd = wake_fd, .events = POLLIN};
    poll(&wake, 1, (int)ms);
}

static const rdzv_clock MONOTONIC = {clock_now_ns, wait_on};

/* News with their texts. Whoever holds them owns `now`. */
typedef struct kept_news {
    rdzv_news news; /* without their pointers: who takes them gets those to what follows */
    char reason[1024];
    round_state now;
} kept_news;

/* Between the thread and its owner: news one way, wishes the other. */
typedef struct mailbox {
    int news_fd, wake_fd; /* eventfds: for the owner, for the thread */
    _Atomic int64_t valid_until_ns;

    pthread_mutex_t lock; /* guards these, up to `next` */
    bool quit, close, left;
    round_ending ending;             /* with `close` */
    char reason[ROUND_REASON_BYTES]; /* with `close` */
    round_departure how;             /* with `left`; its texts are owned */
    bool has_next;                   /* the owner has not taken the latest, which is in `next` */
    kept_news next;

    kept_news taken; /* the owner's */
} mailbox;

/* The node's dealings with the service. */
typedef struct client {
    const rdzv_ops *ops;
    const rdzv_clock *clock;
    rdzv_service_options options; /* borrowed texts */
    int64_t keep_alive_ms;        /* between two renewals */
    void *service;                /* NULL: to be opened */

    char *record;       /* this node's, as it was put; NULL: none is there. Owned */
    bool may_be_gone;   /* it: a call has failed since */
    int64_t renewed_ns; /* when the last renewal that was confirmed was sent */
    rdzv_scope scope;   /* the last look's */
    int64_t revision;   /* what the last look saw; -1: to be looked at anew */
    int64_t all_ms;     /* when it is to look at all nodes again */
    bool first;         /* this node is among the first ones at the service: it looks at all */
    bool first_member;  /* this node is among the first ones of the round: likewise */

    bool ever;          /* the service has answered */
    int64_t silent_ns;  /* since when it does not; 0: it does */
    int64_t refused_ns; /* since when nobody listens there; 0: somebody does */
    int64_t retry_ms;   /* how long to wait before the next try */
    int64_t call_ms;    /* what a call takes, without the wait that it asks for; smoothed */
    char why[1024];     /* it does not answer */
} client;

struct rdzv_handle {
    rdzv_options options;
    pthread_t thread;
    bool has_thread;
    mailbox box;

    /* The thread's. */
    round_machine machine;
    client client;
    round_view view;
    int64_t until_ms;       /* the machine waits until then, or for another view */
    int64_t waits_since_ns; /* for a round */
    int64_t said_ns;
    bool finished; /* closed, or failed */
};

/* The mailbox. */

/* Of a round: no longer true after this node has left it. */
static bool is_of_round(const kept_news *k)
{
    return k->news.phase == RDZV_RUNS || k->news.phase == RDZV_LEAVES;
}

static status mailbox_open(mailbox *m)
{
    pthread_mutex_init(&m->lock, NULL);
    m->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    m->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (m->news_fd < 0 || m->wake_fd < 0)
        return FAIL(STATUS_IO, "a descriptor for the rendezvous: %s", strerror(errno));
    return STATUS_OK;
}

static void mailbox_close(mailbox *m)
{
    if (m->news_fd >= 0)
        close(m->news_fd);
    if (m->wake_fd >= 0)
        close(m->wake_fd);
    pthread_mutex_destroy(&m->lock);
    free((void *)m->how.lost);
    round_state_free(&m->next.now);
    round_state_free(&m->taken.now);
}

/* The latest news are dropped; the lock is held. */
static void drop_next(mailbox *m)
{
    round_state_free(&m->next.now);
    m->has_next = false;
}

status rdzv_post_news(rdzv_handle *rdzv, const rdzv_news *news)
{
    mailbox *m = &rdzv->box;
    kept_news k = {.news = *news};
    status st = round_state_copy(news->now, &k.now);
    if (st != STATUS_OK)
        k.news = (rdzv_news){.phase = RDZV_FAILED, .failure = st};
    snprintf(k.reason, sizeof k.reason, "%s", st == STATUS_OK ? news->reason : status_text());
    pthread_mutex_lock(&m->lock);
    if (m->left && is_of_round(&k)) {
        round_state_free(&k.now);
    } else {
        drop_next(m);
        m->next = k;
        m->has_next = true;
    }
    pthread_mutex_unlock(&m->lock);
    eventfd_write(m->news_fd, 1);
    return st;
}

/* The lease lasts until then. */
static void mailbox_extend(mailbox *m, int64_t valid_until_ns)
{
    if (atomic_exchange(&m->valid_until_ns, valid_until_ns) != valid_until_ns)
        eventfd_write(m->news_fd, 1);
}

/* What lies at a service. */

static void drop_nodes(rdzv_view *view)
{
    for (int i = 0; i < view->n; i++) {
        free(view->nodes[i].id);
        free(view->nodes[i].value);
    }
    view->n = 0;
}

void rdzv_view_free(rdzv_view *view)
{
    drop_nodes(view);
    free(view->nodes);
    free(view->state);
    *view = (rdzv_view){0};
}

static status add_state(rdzv_view *view, const store_watch_key *key)
{
    free(view->state);
    view->state = malloc(key->value_bytes + 1);
    if (view->state == NULL)
        return FAIL(STATUS_NO_MEMORY, "a job's state");
    memcpy(view->state, key->value, key->value_bytes + 1);
    view->state_bytes = key->value_bytes;
    view->state_revision = key->set;
    return STATUS_OK;
}

status rdzv_view_add(rdzv_view *view, const char *nodes, const store_watch_key *key)
{
    if (strcmp(key->key, KEYS_STATE) == 0)
        return add_state(view, key);
    if (strncmp(key->key, nodes, strlen(nodes)) != 0)
        return STATUS_OK; /* nothing of ours */
    rdzv_record *all = realloc(view->nodes, ((size_t)view->n + 1) * sizeof *all);
    if (all != NULL)
        view->nodes = all;
    rdzv_record node = {strdup(key->key + strlen(nodes)), strdup(key->value), key->created};
    if (all == NULL || node.id == NULL || node.value == NULL) {
        free(node.id);
        free(node.value);
        return FAIL(STATUS_NO_MEMORY, "a node's record");
    }
    view->nodes[view->n++] = node;
    return STATUS_OK;
}

status rdzv_prefix(const char *run_id, char *out, size_t size_bytes)
{
    size_t used = (size_t)snprintf(out, size_bytes, KEYS_RENDEZVOUS);
    for (const char *c = run_id; *c != '\0'; c++) {
        if (used + 5 > size_bytes)
            return FAIL(STATUS_INVALID, "the run id is too long: %.64s...", run_id);
        bool plain = *c != '/' && *c != '%';
        used += (size_t)snprintf(out + used, size_bytes - used, plain ? "%c" : "%%%02X",
                                 (unsigned char)*c);
    }
    snprintf(out + used, size_bytes - used, "/");
    return STATUS_OK;
}

/* The client. */

static int64_t now_ns_of(const client *c)
{
    return c->clock->now_ns();
}

static bool passed(const client *c, int64_t end_ns)
{
    return now_ns_of(c) >= end_ns;
}

/* Gives the record back, if the service answers. */
static void client_close(client *c)
{
    if (c->record != NULL && c->silent_ns == 0 && c->ops->remove_node(c->service) != STATUS_OK)
        LOG_D("this node's record stays until its lease ends: %s", status_text());
    c->ops->close(c->service);
    free(c->record);
}

/* When the lease ends, by this node's clock: before the service may end it. The margin is for
 * clocks that do not run at the same speed. */
static int64_t lease_end_ns(const client *c)
{
    int64_t ttl_ms = c->options.ttl_ms;
    return c->renewed_ns + (ttl_ms - ttl_ms / 10) * NS_PER_MS;
}

static void forget_record(client *c)
{
    free(c->record);
    c->record = NULL;
}

/* How long an answer took. The slower ones count at once. */
static void note_answer(client *c, int64_t sent_ns, int64_t wait_ms)
{
    int64_t took_ms = (now_ns_of(c) - sent_ns) / NS_PER_MS - wait_ms;
    if (took_ms > c->call_ms)
        c->call_ms = took_ms;
    else if (took_ms >= 0)
        c->call_ms -= (c->call_ms - took_ms) / SMOOTH_CALLS;
}

/* "; the rendezvous is slow: ...", and what to do; "" if it is fast enough for the lease. */
typedef struct slowness {
    char text[200];
} slowness;

static slowness slowness_of(const client *c)
{
    slowness slow = {""};
    int64_t ttl_ms = c->options.ttl_ms;
    if (c->call_ms > ttl_ms / SLOW_CALLS)
        snprintf(slow.text, sizeof slow.text,
                 "; the rendezvous is slow: a call takes %.2g s, and a lease lasts %.3g s; give "
                 "all nodes a longer --rdzv-conf=keep_alive_interval",
                 (double)c->call_ms * 1e-3, (double)ttl_ms * 1e-3);
    return slow;
}

/* Opens the service if need be, and renews the lease if it is time. *gone: the lease has ended
 * before. This and the calls below fail as those of a backend do. */
static status client_renew(client *c, bool *gone)
{
    int64_t sent_ns = now_ns_of(c);
    *gone = false;
    if (c->service == NULL)
        TRY(c->ops->open(&c->options, &c->service));
    if (c->record == NULL || sent_ns < c->renewed_ns + c->keep_alive_ms * NS_PER_MS)
        return STATUS_OK;
    status st = c->ops->keep_alive(c->service);
    if (st == STATUS_OK || st == STATUS_INVALID)
        note_answer(c, sent_ns, 0);
    if (st == STATUS_OK)
        c->renewed_ns = sent_ns;
    if (st != STATUS_INVALID)
        return st;
    forget_record(c);
    c->revision = -1;
    *gone = true;
    return STATUS_OK;
}

static status client_put(client *c, const round_node *self, bool runs_nothing)
{
    char *text = NULL;
    TRY(round_text_of_node(self, &text));
    forget_record(c);
    int64_t sent_ns = now_ns_of(c);
    status st = c->ops->put_node(c->service, text, runs_nothing);
    if (st != STATUS_OK) {
        free(text);
        return st;
    }
    note_answer(c, sent_ns, 0);
    c->record = text;
    c->may_be_gone = false;
    c->renewed_ns = sent_ns;
    return STATUS_OK;
}

/* Whether fewer than FIRST nodes came to the service before this one. */
static bool came_first(const rdzv_view *text, const char *id)
{
    int64_t own = INT64_MAX;
    int before = 0;
    for (int i = 0; i < text->n; i++)
        if (strcmp(text->nodes[i].id, id) == 0)
            own = text->nodes[i].order;
    for (int i = 0; i < text->n; i++)
        before += text->nodes[i].order < own;
    return before < FIRST;
}

static bool is_first_member(const round_state *state, const char *id)
{
    int rank = round_rank_of(state, id);
    return rank >= 0 && rank < FIRST;
}

/* *out: whether the service has this node's record as it is to be. */
static status has_record(const client *c, const round_node *self, bool *out)
{
    char *text = NULL;
    TRY(round_text_of_node(self, &text));
    *out = c->record != NULL && !c->may_be_gone && strcmp(text, c->record) == 0;
    free(text);
    return STATUS_OK;
}

/* What lies at the service makes no sense: says so, and what to do. status_text() has why. */
static status name_nonsense(const client *c, const rdzv_view *text)
{
    char key[512], why[512], head[4 * HEAD_BYTES + 1];
    const char *mend = c->ops->ends_with_its_host ? "start that store anew" : "delete the key";
    size_t n = text->state_bytes < HEAD_BYTES ? text->state_bytes : HEAD_BYTES;
    printable_bytes(text->state != NULL ? text->state : "", n, head, sizeof head);
    printable_copy(PRINTABLE_LINE, status_text(), why, sizeof why);
    TRY(rdzv_prefix(c->options.run_id, key, sizeof key));
    return FAIL(c->ever ? STATUS_PEER : STATUS_INVALID,
                "the key %sstate at %s holds no state of a round, but %zu bytes that begin with "
                "\"%s\" (%s); %s, or give another --rdzv-id on all nodes",
                key, c->options.endpoints, text->state_bytes, head, why, mend);
}

/* What has changed replaces the view; there is no text if nothing has. */
static status read_view(const client *c, const rdzv_view *text, round_view *out)
{
    round_view view;
    if (text->revision == 0)
        return STATUS_OK;
    status st = round_text_read(text, &view);
    if (st == STATUS_PEER)
        st = name_nonsense(c, text);
    TRY(st);
    round_view_free(out);
    *out = view;
    return STATUS_OK;
}

/* How soon to look at all nodes again. Until then one that is not among the first is content with
 * the state: what the others say of themselves is read by the first ones. */
static void note_nodes(client *c, rdzv_view *text)
{
    int64_t pause_ms = (int64_t)text->n * PER_NODE_MS;
    c->all_ms = now_ns_of(c) / NS_PER_MS + (pause_ms > LOOK_AT_ALL_MS ? pause_ms : LOOK_AT_ALL_MS);
    c->first = c->first_member || came_first(text, c->options.node_id);
    if (!c->first)
        drop_nodes(text);
}

/* Looks, until until_ms (base/clock.h, in ms) or 1 s at most. `self` is the record that this node
 * would like to have there. What has changed replaces *view. */
static status client_look(client *c, const round_node *self, int64_t until_ms, round_view *view)
{
    rdzv_view text = {0};
    bool own_is_there = false;
    int64_t now_ms = now_ns_of(c) / NS_PER_MS;
    int64_t renew_ms = c->renewed_ns / NS_PER_MS + c->keep_alive_ms;
    bool sees_all = c->first || now_ms >= c->all_ms;
    rdzv_scope scope = sees_all ? RDZV_ALL : RDZV_STATE;
    if (c->record != NULL && renew_ms < until_ms)
        until_ms = renew_ms;
    int64_t wait_ms = until_ms < now_ms + LOOK_MS ? until_ms - now_ms : LOOK_MS;
    wait_ms = wait_ms > 0 ? wait_ms : 0;
    TRY(has_record(c, self, &own_is_there));
    int64_t sent_ns = now_ns_of(c), after = scope == c->scope ? c->revision : -1;
    TRY(c->ops->look(c->service, scope, after, wait_ms, &text));
    note_answer(c, sent_ns, after >= 0 ? wait_ms : 0);
    if (sees_all && text.revision != 0)
        note_nodes(c, &text);
    status st = read_view(c, &text, view);
    if (st == STATUS_OK && text.revision != 0) {
        view->only_state = !c->first;
        c->scope = view->only_state ? RDZV_STATE : scope;
        c->revision = text.revision;
        c->first_member = is_first_member(&view->state, self->id);
        c->first = c->first || c->first_member;
    }
    if (st == STATUS_OK)
        view->own_is_there = own_is_there;
    rdzv_view_free(&text);
    return st;
}

/* If the state is still that of the view. */
static status client_write(client *c, const round_view *view, const round_state *state)
{
    char *text = NULL;
    bool set = false; /* or another node was first: the next look shows it */
    TRY(round_text_of_state(state, &text));
    c->revision = -1;
    status st = c->ops->set_state(c->service, view->state_revision, text, &set);
    free(text);
    return st;
}

/* How the calls went: notes since when there is no answer, and why. */
static void note_result(client *c, status result)
{
    int64_t now_ns = now_ns_of(c);
    if (result == STATUS_OK) {
        if (c->silent_ns != 0 && now_ns - c->silent_ns > SILENT_MS * NS_PER_MS)
            LOG_I("the rendezvous at %s answers again", c->options.endpoints);
        c->ever = true;
        c->silent_ns = c->refused_ns = 0;
        c->retry_ms = RETRY_MS;
        return;
    }
    int64_t timeout_ms = c->options.timeout_ms;
    if (result == STATUS_TIMEOUT)
        status_append("; a call may take %.3g s: a slower service needs a longer --rdzv-conf=%s",
                      (double)timeout_ms * 1e-3,
                      timeout_ms < c->options.ttl_ms / 3 ? "read_timeout" : "keep_alive_interval");
    snprintf(c->why, sizeof c->why, "%s", status_text());
    c->revision = -1;
    c->may_be_gone = true;
    if (c->silent_ns == 0)
        c->silent_ns = now_ns;
    else if (c->retry_ms < RETRY_MOST_MS)
        c->retry_ms *= 2;
    if (result != STATUS_REFUSED)
        c->refused_ns = 0;
    else if (c->refused_ns == 0)
        c->refused_ns = now_ns;
}

/* The thread. */

/* A thread that cannot tell its owner any more ends. */
static status post_phase(rdzv_handle *rdzv, rdzv_phase phase, round_ending ending,
                         const char *reason)
{
    const round_machine *machine = &rdzv->machine;
    const rdzv_news news = {.phase = phase,
                            .failure = STATUS_PEER,
                            .ending = ending,
                            .reason = reason,
                            .now = &machine->last,
                            .node_rank = round_rank_of(&machine->last, machine->self.id)};
    status st = rdzv_post_news(rdzv, &news);
    rdzv->finished =
        rdzv->finished || st != STATUS_OK || phase == RDZV_CLOSED || phase == RDZV_FAILED;
    return st;
}

static status fail(rdzv_handle *rdzv, const char *reason)
{
    return post_phase(rdzv, RDZV_FAILED, ROUND_BADLY, reason);
}

static status drive(rdzv_handle *rdzv, const round_event *event);

static status expire(rdzv_handle *rdzv, const char *why)
{
    char reason[1300];
    round_event event = {.kind = ROUND_EVENT_EXPIRED, .reason = reason};
    if (rdzv->client.silent_ns != 0)
        snprintf(reason, sizeof reason, "%s: %s", why, rdzv->client.why);
    else
        snprintf(reason, sizeof reason, "%s%s", why, slowness_of(&rdzv->client).text);
    return drive(rdzv, &event);
}

static status begin_round(rdzv_handle *rdzv)
{
    int64_t end_ns = lease_end_ns(&rdzv->client);
    if (passed(&rdzv->client, end_ns))
        return expire(rdzv, "this node's lease ended before the round began");
    mailbox_extend(&rdzv->box, end_ns);
    return post_phase(rdzv, RDZV_RUNS, ROUND_WELL, "");
}

/* One step of the machine, and what it asks for. It looks anew after all but a wait for a view. */
static status drive(rdzv_handle *rdzv, const round_event *event)
{
    round_action action;
    TRY(round_step(&rdzv->machine, event, now_ns_of(&rdzv->client) / NS_PER_MS, &action));
    bool waits = event->kind == ROUND_EVENT_VIEW && action.kind == ROUND_DO_WAIT;
    rdzv->until_ms = waits ? action.until_ms : 0;
    status st = STATUS_OK;
    switch (action.kind) {
    case ROUND_DO_WAIT:
        break;
    case ROUND_DO_PUT:
        st = client_put(&rdzv->client, &rdzv->machine.self, rdzv->machine.phase == ROUND_WAITS);
        break;
    case ROUND_DO_WRITE:
        st = client_write(&rdzv->client, &rdzv->view, &action.state);
        break;
    case ROUND_DO_BEGIN:
        st = begin_round(rdzv);
        break;
    case ROUND_DO_LEAVE:
        st = post_phase(rdzv, RDZV_LEAVES, action.ending, action.reason);
        break;
    case ROUND_DO_END:
        st = post_phase(rdzv, RDZV_CLOSED, action.ending, action.reason);
        break;
    }
    round_action_free(&action);
    return st;
}

static status renew(rdzv_handle *rdzv)
{
    bool gone;
    TRY(client_renew(&rdzv->client, &gone));
    if (gone)
        return expire(rdzv, "this node's lease at the rendezvous has ended");
    if (rdzv->machine.phase == ROUND_RUNS)
        mailbox_extend(&rdzv->box, lease_end_ns(&rdzv->client));
    return STATUS_OK;
}

/* All that is due now, and one look. */
static status take_turn(rdzv_handle *rdzv)
{
    TRY(renew(rdzv));
    TRY(client_look(&rdzv->client, &rdzv->machine.self, rdzv->until_ms, &rdzv->view));
    return drive(rdzv, &(round_event){.kind = ROUND_EVENT_VIEW, .view = &rdzv->view});
}

static void pause_for(const rdzv_handle *rdzv, int64_t ms)
{
    rdzv->client.clock->wait(rdzv->box.wake_fd, ms);
}

/* What a waiting node waits for. */
static void describe_wait(const rdzv_handle *rdzv, char *out, size_t size_bytes)
{
    char missing[512] = "many have come";
    if (!rdzv->view.only_state)
        round_quorum_text(&rdzv->machine.rules, &rdzv->view, missing, sizeof missing);
    if (rdzv->client.silent_ns != 0)
        snprintf(out, size_bytes, "the rendezvous cannot be used: %s", rdzv->client.why);
    else
        snprintf(out, size_bytes, "waits for nodes: %s%s", missing,
                 slowness_of(&rdzv->client).text);
}

/* How long this node has waited for a round. */
static status check_wait(rdzv_handle *rdzv)
{
    char waits[1200], reason[1300];
    int64_t now_ns = now_ns_of(&rdzv->client);
    if (rdzv->machine.phase != ROUND_WAITS && rdzv->machine.phase != ROUND_AGREES) {
        rdzv->waits_since_ns = rdzv->said_ns = now_ns;
        return STATUS_OK;
    }
    bool late = now_ns - rdzv->waits_since_ns > rdzv->options.join_ms * NS_PER_MS;
    if (!late && now_ns - rdzv->said_ns < SAY_MS * NS_PER_MS)
        return STATUS_OK;
    rdzv->said_ns = now_ns;
    describe_wait(rdzv, waits, sizeof waits);
    if (!late) {
        LOG_I("%s", waits);
        return STATUS_OK;
    }
    snprintf(reason, sizeof reason, "no round within %lld s (--join-timeout): %s",
             (long long)rdzv->options.join_ms / 1000, waits);
    return fail(rdzv, reason);
}

static bool is_since(const client *c, int64_t since_ns, int64_t ms)
{
    return since_ns != 0 && passed(c, since_ns + ms * NS_PER_MS);
}

/* A store that answers no more: a node without a round waits for it as long as a lease lasts. */
static bool is_gone(const client *service, round_phase phase)
{
    return service->ops->ends_with_its_host && service->ever &&
           (is_since(service, service->refused_ns, service->keep_alive_ms) ||
            (phase == ROUND_WAITS &&
             is_since(service, service->silent_ns, service->options.ttl_ms)));
}

/* What has taken too long. */
static status check_times(rdzv_handle *rdzv)
{
    const client *service = &rdzv->client;
    round_phase phase = rdzv->machine.phase;
    char reason[1300];
    if ((phase == ROUND_RUNS || phase == ROUND_AGREES) && passed(service, lease_end_ns(service)))
        TRY(expire(rdzv, "this node's lease has ended, as the rendezvous does not answer in time"));
    if (!is_gone(service, phase))
        return check_wait(rdzv);
    snprintf(reason, sizeof reason, "the job's store is gone, or this node is cut off from it: %s",
             service->why);
    return fail(rdzv, reason);
}

/* The owner's wishes. They stay until the machine has taken them; it asks for nothing then. */
static status take_wishes(rdzv_handle *rdzv, bool *quit)
{
    mailbox *m = &rdzv->box;
    status st = STATUS_OK;
    eventfd_t count;
    eventfd_read(m->wake_fd, &count);
    pthread_mutex_lock(&m->lock);
    const round_event ended = {.kind = ROUND_EVENT_CLOSE, .ending = m->ending, .reason = m->reason};
    const round_event left = {.kind = ROUND_EVENT_LEFT, .left = m->how};
    *quit = m->quit;
    if (m->close)
        st = drive(rdzv, &ended);
    if (st == STATUS_OK && m->left)
        st = drive(rdzv, &left);
    if (st == STATUS_OK && m->left) {
        rdzv->waits_since_ns = rdzv->said_ns = now_ns_of(&rdzv->client);
        m->left = false;
        free((void *)m->how.lost);
        m->how = (round_departure){0};
    }
    pthread_mutex_unlock(&m->lock);
    return st;
}

/* After a turn. */
static status note_turn(rdzv_handle *rdzv, status result)
{
    client *service = &rdzv->client;
    note_result(service, result);
    if (result == STATUS_INVALID)
        return fail(rdzv, service->why);
    if (!rdzv->finished)
        TRY(check_times(rdzv));
    if (result != STATUS_OK)
        pause_for(rdzv, service->retry_ms);
    else if (rdzv->view.n > CROWD && rdzv->until_ms > 0)
        pause_for(rdzv, rdzv->view.n / 8);
    return STATUS_OK;
}

static void *rdzv_thread(void *arg)
{
    rdzv_handle *rdzv = arg;
    int64_t end_ns = 0;
    while (!rdzv->finished) {
        bool quit;
        status st = take_wishes(rdzv, &quit);
        if (quit && end_ns == 0)
            end_ns = now_ns_of(&rdzv->client) + FAREWELL_MS * NS_PER_MS;
        if (quit && (!rdzv->machine.closing || passed(&rdzv->client, end_ns)))
            break;
        if (st == STATUS_OK)
            st = take_turn(rdzv);
        if (note_turn(rdzv, st) != STATUS_OK)
            pause_for(rdzv, rdzv->client.retry_ms); /* memory is short */
    }
    client_close(&rdzv->client);
    return NULL;
}

/* The owner's calls. */

static void init_client(rdzv_handle *rdzv)
{
    const rdzv_options *o = &rdzv->options;
    int64_t ttl_ms = o->keep_alive_ms * o->keep_alive_misses, third_ms = ttl_ms / 3;
    rdzv->client = (client){
        .ops = o->backend,
        .clock = o->clock != NULL ? o->clock : &MONOTONIC,
        .options = {.endpoints = o->endpoints,
                    .run_id = o->run_id,
                    .access = o->access,
                    .node_id = rdzv->machine.self.id,
                    .ttl_ms = ttl_ms,
                    .timeout_ms = o->read_ms > 0 && o->read_ms < third_ms ? o->read_ms : third_ms,
                    .wake_fd = rdzv->box.wake_fd},
        .keep_alive_ms = o->keep_alive_ms,
        .revision = -1,
        .all_ms = INT64_MIN,
        .retry_ms = RETRY_MS};
}

static status start_thread(rdzv_handle *rdzv, const rdzv_options *o)
{
    round_rules rules = {o->min_nodes, o->max_nodes, o->last_call_ms};
    round_machine_init(&rdzv->machine, &rules, &o->self);
    init_client(rdzv);
    rdzv->waits_since_ns = rdzv->said_ns = now_ns_of(&rdzv->client);
    TRY(thread_start(rdzv_thread, rdzv, "the rendezvous'", &rdzv->thread));
    rdzv->has_thread = true;
    return STATUS_OK;
}

status rdzv_open(const rdzv_options *options, rdzv_handle **out)
{
    rdzv_handle *rdzv = calloc(1, sizeof *rdzv);
    if (rdzv == NULL)
        return FAIL(STATUS_NO_MEMORY, "a rendezvous");
    rdzv->options = *options;
    status st = mailbox_open(&rdzv->box);
    if (st == STATUS_OK && options->backend != NULL)
        st = start_thread(rdzv, options);
    if (st == STATUS_OK)
        *out = rdzv;
    else
        rdzv_close(rdzv);
    return st;
}

int rdzv_fd(const rdzv_handle *rdzv)
{
    return rdzv->box.news_fd;
}

rdzv_news rdzv_take_news(rdzv_handle *rdzv)
{
    mailbox *m = &rdzv->box;
    eventfd_t count;
    eventfd_read(m->news_fd, &count);
    pthread_mutex_lock(&m->lock);
    if (m->has_next) {
        round_state_free(&m->taken.now);
        m->taken = m->next;
        m->next.now = (round_state){0};
        m->has_next = false;
    }
    pthread_mutex_unlock(&m->lock);
    rdzv_news news = m->taken.news;
    news.reason = m->taken.reason;
    news.now = is_of_round(&m->taken) ? &m->taken.now : NULL;
    news.valid_until_ns = atomic_load(&m->valid_until_ns);
    return news;
}

/* A copy of what the node knows, in one block. */
static round_departure copy_departure(const round_departure *how)
{
    round_departure copy = *how;
    const char **lost = calloc((size_t)how->n_lost + 1, sizeof *lost + ROUND_ID_BYTES);
    char *text = (char *)(lost + how->n_lost);
    copy.lost = lost;
    copy.n_lost = lost != NULL ? how->n_lost : 0; /* else their leases are waited for */
    for (int i = 0; i < copy.n_lost; i++, text += ROUND_ID_BYTES) {
        snprintf(text, ROUND_ID_BYTES, "%s", how->lost[i]);
        lost[i] = text;
    }
    return copy;
}

void rdzv_leave(rdzv_handle *rdzv, const round_departure *how)
{
    mailbox *m = &rdzv->box;
    round_departure copy = copy_departure(how);
    pthread_mutex_lock(&m->lock);
    free((void *)m->how.lost);
    m->how = copy;
    m->left = true;
    if (m->has_next && is_of_round(&m->next))
        drop_next(m);
    pthread_mutex_unlock(&m->lock);
    if (is_of_round(&m->taken)) {
        m->taken.news.phase = RDZV_WAITS;
        m->taken.reason[0] = '\0';
    }
    eventfd_write(m->wake_fd, 1);
}

void rdzv_end_job(rdzv_handle *rdzv, round_ending ending, const char *reason)
{
    mailbox *m = &rdzv->box;
    pthread_mutex_lock(&m->lock);
    m->close = true;
    m->ending = ending;
    snprintf(m->reason, sizeof m->reason, "%s", reason);
    pthread_mutex_unlock(&m->lock);
    eventfd_write(m->wake_fd, 1);
}

void rdzv_close(rdzv_handle *rdzv)
{
    if (rdzv == NULL)
        return;
    if (rdzv->has_thread) {
        pthread_mutex_lock(&rdzv->box.lock);
        rdzv->box.quit = true;
        pthread_mutex_unlock(&rdzv->box.lock);
        eventfd_write(rdzv->box.wake_fd, 1);
        pthread_join(rdzv->thread, NULL);
    }
    mailbox_close(&rdzv->box);
    round_machine_free(&rdzv->machine);
    round_view_free(&rdzv->view);
    free(rdzv);
}
