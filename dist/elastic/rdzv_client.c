#include "dist/elastic/rdzv_client.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/elastic/round_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOK_MS = 1000,        /* one look waits so long: a service that has gone is noticed */
    FIRST = 8,             /* so many nodes always look at all nodes; */
    LOOK_AT_ALL_MS = 5000, /* between two looks at all, by another one, */
    PER_NODE_MS = 25,      /* and for each node there, so that all nodes ask 40 times a second */
    RETRY_MS = 100,        /* after a call that has failed; doubled up to */
    RETRY_MOST_MS = 1000,
    HEAD_BYTES = 24,  /* of what lies at the state's key and is none, for the message */
    PACE_CALLS = 8,   /* over so many a call's time is smoothed */
    SLOW_CALLS = 8,   /* a service is slow if fewer calls fit into a lease */
    SILENT_MS = 5000, /* after so long without an answer, a line says that there is one again */
};

static const int64_t NS_PER_MS = 1000000;

void rdzv_client_init(rdzv_client *contact, const rdzv_ops *ops,
                      const rdzv_service_options *options, int64_t keep_alive_ms)
{
    *contact = (rdzv_client){.ops = ops,
                             .options = *options,
                             .keep_alive_ms = keep_alive_ms,
                             .revision = -1,
                             .all_ms = INT64_MIN,
                             .retry_ms = RETRY_MS};
}

void rdzv_client_close(rdzv_client *contact)
{
    if (contact->record != NULL && contact->silent_ns == 0 &&
        contact->ops->remove_node(contact->backend) != STATUS_OK)
        LOG_D("this node's record stays until its lease ends: %s", status_text());
    contact->ops->close(contact->backend);
    free(contact->record);
    contact->backend = NULL;
    contact->record = NULL;
}

/* The margin is for clocks that do not run at the same speed. */
int64_t rdzv_client_lease_end_ns(const rdzv_client *contact)
{
    int64_t ttl_ms = contact->options.ttl_ms;
    return contact->renewed_ns + (ttl_ms - ttl_ms / 10) * NS_PER_MS;
}

static status open_backend(rdzv_client *contact)
{
    if (contact->backend != NULL)
        return STATUS_OK;
    return contact->ops->open(&contact->options, &contact->backend);
}

static void forget_record(rdzv_client *contact)
{
    free(contact->record);
    contact->record = NULL;
}

/* How long an answer took. The slower ones count at once. */
static void note_answer(rdzv_client *contact, int64_t sent_ns, int64_t wait_ms)
{
    int64_t took_ms = (clock_now_ns() - sent_ns) / NS_PER_MS - wait_ms;
    if (took_ms > contact->call_ms)
        contact->call_ms = took_ms;
    else if (took_ms >= 0)
        contact->call_ms -= (contact->call_ms - took_ms) / PACE_CALLS;
}

rdzv_slowness rdzv_client_slowness(const rdzv_client *contact)
{
    rdzv_slowness pace = {""};
    int64_t ttl_ms = contact->options.ttl_ms;
    if (contact->call_ms > ttl_ms / SLOW_CALLS)
        snprintf(pace.text, sizeof pace.text,
                 "; the rendezvous is slow: a call takes %.2g s, and a lease lasts %.3g s; give "
                 "all nodes a longer --rdzv-conf=keep_alive_interval",
                 (double)contact->call_ms * 1e-3, (double)ttl_ms * 1e-3);
    return pace;
}

status rdzv_client_renew(rdzv_client *contact, bool *gone)
{
    int64_t sent_ns = clock_now_ns();
    *gone = false;
    TRY(open_backend(contact));
    if (contact->record == NULL ||
        sent_ns < contact->renewed_ns + contact->keep_alive_ms * NS_PER_MS)
        return STATUS_OK;
    status st = contact->ops->keep_alive(contact->backend);
    if (st == STATUS_OK || st == STATUS_INVALID)
        note_answer(contact, sent_ns, 0);
    if (st == STATUS_OK)
        contact->renewed_ns = sent_ns;
    if (st != STATUS_INVALID)
        return st;
    forget_record(contact);
    contact->revision = -1;
    *gone = true;
    return STATUS_OK;
}

status rdzv_client_put(rdzv_client *contact, const round_node *self, bool runs_nothing)
{
    char *text = NULL;
    TRY(open_backend(contact));
    TRY(round_text_of_node(self, &text));
    forget_record(contact);
    int64_t sent_ns = clock_now_ns();
    status st = contact->ops->put_node(contact->backend, text, runs_nothing);
    if (st != STATUS_OK) {
        free(text);
        return st;
    }
    note_answer(contact, sent_ns, 0);
    contact->record = text;
    contact->may_be_gone = false;
    contact->renewed_ns = sent_ns;
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

static void drop_nodes(rdzv_view *text)
{
    for (int i = 0; i < text->n; i++) {
        free(text->nodes[i].id);
        free(text->nodes[i].value);
    }
    text->n = 0;
}

/* *out: whether the service has this node's record as it is to be. */
static status has_record(const rdzv_client *contact, const round_node *self, bool *out)
{
    char *text = NULL;
    TRY(round_text_of_node(self, &text));
    *out = contact->record != NULL && !contact->may_be_gone && strcmp(text, contact->record) == 0;
    free(text);
    return STATUS_OK;
}

/* What lies at the service makes no sense: says so, and what to do. status_text() has why. */
static status name_nonsense(const rdzv_client *contact, const rdzv_view *text)
{
    char key[512], why[512], head[4 * HEAD_BYTES + 1];
    const char *mend =
        contact->ops->ends_with_its_host ? "start that store anew" : "delete the key";
    size_t n = text->state_bytes < HEAD_BYTES ? text->state_bytes : HEAD_BYTES;
    printable_bytes(text->state != NULL ? text->state : "", n, head, sizeof head);
    printable_copy(PRINTABLE_LINE, status_text(), why, sizeof why);
    TRY(rdzv_prefix(contact->options.run_id, key, sizeof key));
    return FAIL(contact->ever ? STATUS_PEER : STATUS_INVALID,
                "the key %sstate at %s holds no state of a round, but %zu bytes that begin with "
                "\"%s\" (%s); %s, or give another --rdzv-id on all nodes",
                key, contact->options.endpoints, text->state_bytes, head, why, mend);
}

/* What has changed replaces the view; there is no text if nothing has. */
static status read_view(const rdzv_client *contact, const rdzv_view *text, round_view *out)
{
    round_view view;
    if (text->revision == 0)
        return STATUS_OK;
    status st = round_text_read(text, &view);
    if (st == STATUS_PEER)
        st = name_nonsense(contact, text);
    TRY(st);
    round_view_free(out);
    *out = view;
    return STATUS_OK;
}

/* How soon to look at all nodes again. Until then one that is not among the first is content with
 * the state: what the others say of themselves is read by the first ones. */
static void note_nodes(rdzv_client *contact, rdzv_view *text)
{
    int64_t pause_ms = (int64_t)text->n * PER_NODE_MS;
    contact->all_ms =
        clock_now_ns() / NS_PER_MS + (pause_ms > LOOK_AT_ALL_MS ? pause_ms : LOOK_AT_ALL_MS);
    contact->first = contact->first_member || came_first(text, contact->options.node_id);
    if (!contact->first)
        drop_nodes(text);
}

status rdzv_client_look(rdzv_client *contact, const round_node *self, int64_t until_ms,
                        round_view *view)
{
    rdzv_view text = {0};
    bool own_is_there = false;
    int64_t now_ms = clock_now_ns() / NS_PER_MS;
    int64_t renew_ms = contact->renewed_ns / NS_PER_MS + contact->keep_alive_ms;
    bool sees_all = contact->first || now_ms >= contact->all_ms;
    rdzv_scope scope = sees_all ? RDZV_ALL : RDZV_STATE;
    if (contact->record != NULL && renew_ms < until_ms)
        until_ms = renew_ms;
    int64_t wait_ms = until_ms < now_ms + LOOK_MS ? until_ms - now_ms : LOOK_MS;
    wait_ms = wait_ms > 0 ? wait_ms : 0;
    TRY(open_backend(contact));
    TRY(has_record(contact, self, &own_is_there));
    int64_t sent_ns = clock_now_ns(), after = scope == contact->scope ? contact->revision : -1;
    status st = contact->ops->look(contact->backend, scope, after, wait_ms, &text);
    TRY(st);
    note_answer(contact, sent_ns, after >= 0 ? wait_ms : 0);
    if (sees_all && text.revision != 0)
        note_nodes(contact, &text);
    st = read_view(contact, &text, view);
    if (st == STATUS_OK && text.revision != 0) {
        view->only_state = !contact->first;
        contact->scope = view->only_state ? RDZV_STATE : scope;
        contact->revision = text.revision;
        contact->first_member = is_first_member(&view->state, self->id);
        contact->first = contact->first || contact->first_member;
    }
    if (st == STATUS_OK)
        view->own_is_there = own_is_there;
    rdzv_view_free(&text);
    return st;
}

status rdzv_client_write(rdzv_client *contact, const round_view *view, const round_state *state)
{
    char *text = NULL;
    bool set = false; /* or another node was first: the next look tells */
    TRY(open_backend(contact));
    TRY(round_text_of_state(state, &text));
    contact->revision = -1;
    status st = contact->ops->set_state(contact->backend, view->state_revision, text, &set);
    free(text);
    return st;
}

void rdzv_client_note(rdzv_client *contact, status result)
{
    int64_t now_ns = clock_now_ns();
    if (result == STATUS_OK) {
        if (contact->silent_ns != 0 && now_ns - contact->silent_ns > SILENT_MS * NS_PER_MS)
            LOG_I("the rendezvous at %s answers again", contact->options.endpoints);
        contact->ever = true;
        contact->silent_ns = contact->refused_ns = 0;
        contact->retry_ms = RETRY_MS;
        return;
    }
    int64_t timeout_ms = contact->options.timeout_ms;
    if (result == STATUS_TIMEOUT)
        status_append("; a call may take %.3g s: a slower service needs a longer --rdzv-conf=%s",
                      (double)timeout_ms * 1e-3,
                      timeout_ms < contact->options.ttl_ms / 3 ? "read_timeout"
                                                               : "keep_alive_interval");
    snprintf(contact->why, sizeof contact->why, "%s", status_text());
    contact->revision = -1;
    contact->may_be_gone = true;
    if (contact->silent_ns == 0)
        contact->silent_ns = now_ns;
    else if (contact->retry_ms < RETRY_MOST_MS)
        contact->retry_ms *= 2;
    if (result != STATUS_REFUSED)
        contact->refused_ns = 0;
    else if (contact->refused_ns == 0)
        contact->refused_ns = now_ns;
}
