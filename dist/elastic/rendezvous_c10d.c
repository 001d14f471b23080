/* The rendezvous service on our store (dist/store/store_watch.h): a state and a record per node, as
 * watched keys. Whoever serves the store may come and go as a node does, so there may be several of
 * them, and each is a service of its own: what one knows, another does not. A node is at one of
 * them. It goes on to the next one after a call that has failed.
 *
 * Nodes that wait at different endpoints would never meet. So a node that waits looks at the others
 * now and then, and goes to the one whose state has the greatest claim to the job
 * (round_state_claim), or else to the first one that answers. All nodes choose alike. No job begins
 * at another endpoint than the first.
 */
#include "base/clock.h"
#include "base/comma_list.h"
#include "base/json_text.h"
#include "dist/elastic/rendezvous_backend.h"
#include "dist/elastic/round_state.h"
#include "dist/membership/keys.h"
#include "dist/net/socket_address.h"
#include "dist/store/store_watch.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_PORT = 29400,
    MAX_ENDPOINTS = 16,
    HOST_BYTES = 256,
    SCOUT_MS = 1000,        /* between two looks at another endpoint, */
    SCOUT_TIMEOUT_MS = 500, /* and for each */
};

typedef struct endpoint {
    char host[HOST_BYTES];
    int port;
    bool silent; /* it gave no answer when it was asked last, not even that nobody listens */
} endpoint;

typedef struct c10d {
    endpoint endpoints[MAX_ENDPOINTS];
    int n, at; /* at: where this node is, or tries next */
    char prefix[KEYS_BYTES];
    char node[KEYS_BYTES]; /* the key of its record */
    int64_t ttl_ms, timeout_ms;
    int wake_fd;
    store *client;    /* NULL: it is nowhere */
    bool ever;        /* a store of ours has answered */
    bool waits;       /* its latest record says that it runs nothing */
    int scouted;      /* the endpoint that was looked at last */
    int64_t scout_ns; /* when to look at the next one */
    int in_doubt;     /* the silent endpoint that the latest view names; -1: none */
} c10d;

static status parse_endpoints(c10d *self, const char *text)
{
    size_t length;
    const char *word, *at = text;
    while ((word = comma_list_next(&at, &length)) != NULL) {
        char one[HOST_BYTES + 16];
        endpoint *e = &self->endpoints[self->n];
        if (self->n == MAX_ENDPOINTS || length == 0 || length >= sizeof one)
            return FAIL(STATUS_INVALID,
                        "endpoints \"%s\": HOST[:PORT],HOST[:PORT]... is expected, "
                        "at most %d",
                        text, MAX_ENDPOINTS);
        snprintf(one, sizeof one, "%.*s", (int)length, word);
        TRY(socket_address_parse(one, DEFAULT_PORT, e->host, sizeof e->host, &e->port));
        self->n++;
    }
    return self->n > 0 ? STATUS_OK : FAIL(STATUS_INVALID, "no endpoint: HOST[:PORT] is expected");
}

static void close_c10d(void *ctx)
{
    c10d *self = ctx;
    if (self == NULL)
        return;
    store_destroy(self->client);
    free(self);
}

static status open_c10d(const rendezvous_backend_options *options, void **out)
{
    c10d *self = calloc(1, sizeof *self);
    if (self == NULL)
        return FAIL(STATUS_NO_MEMORY, "a rendezvous");
    self->ttl_ms = options->ttl_ms;
    self->timeout_ms = options->timeout_ms;
    self->wake_fd = options->wake_fd;
    self->in_doubt = -1;
    status st = parse_endpoints(self, options->endpoints);
    if (st == STATUS_OK)
        st = rendezvous_backend_prefix(options->run_id, self->prefix, sizeof self->prefix);
    int length = snprintf(self->node, sizeof self->node, "%s%s", KEYS_NODES, options->node_id);
    if (st == STATUS_OK && (length >= (int)sizeof self->node || strchr(options->node_id, '/')))
        st = FAIL(STATUS_INVALID, "a node's id is \"%s\"", options->node_id);
    if (st != STATUS_OK) {
        close_c10d(self);
        return st;
    }
    *out = self;
    return STATUS_OK;
}

static status join_store(const c10d *self, int which, int64_t timeout_ms, store **out)
{
    const endpoint *e = &self->endpoints[which];
    return store_create(&(store_options){.host = e->host,
                                         .port = e->port,
                                         .prefix = self->prefix,
                                         .timeout_ms = timeout_ms,
                                         .connect_timeout_ms = timeout_ms,
                                         .once = true},
                        out);
}

static int64_t claim_of(const store_watch_answer *answer)
{
    if (answer->n == 0)
        return 0;
    const store_watch_key *key = &answer->keys[0];
    json_t *value = json_text_parse(key->value, key->value_bytes, 0, NULL);
    round_state state = {.round = json_integer_value(json_object_get(value, "round")),
                         .over = json_is_true(json_object_get(value, "over")),
                         .closed = json_is_true(json_object_get(value, "closed"))};
    json_decref(value);
    return round_state_claim(&state);
}

/* *claim: of the job's state there. STATUS_INVALID if what listens there is no store, and the only
 * endpoint; or if it is a store, but closes the connection at a request of ours, twice. One that is
 * short of descriptors does that, too: not at first. */
static status try_endpoint(c10d *self, int which, int64_t timeout_ms, store **out, int64_t *claim)
{
    status st = STATUS_PEER;
    store *client = NULL;
    store_watch_answer answer = {0};
    for (int i = 0; i < 2 && st == STATUS_PEER; i++) {
        status joined = join_store(self, which, timeout_ms, &client);
        self->endpoints[which].silent =
            joined != STATUS_OK && joined != STATUS_REFUSED && joined != STATUS_INVALID;
        if (joined == STATUS_INVALID && (self->n > 1 || self->ever))
            joined = STATUS_PEER; /* no store, but another endpoint may be one, or this one later */
        TRY(joined);
        st = store_watch(client, &(store_watch_options){KEYS_STATE, -1, 0, 0}, &answer);
        self->endpoints[which].silent = st == STATUS_TIMEOUT;
        if (st != STATUS_OK)
            store_destroy(client);
    }
    if (st == STATUS_PEER) {
        char name[SOCKET_ADDRESS_BYTES];
        socket_address_name(self->endpoints[which].host, self->endpoints[which].port, name);
        return FAIL(self->ever ? STATUS_PEER : STATUS_INVALID,
                    "what listens at %s is a store without leases: torchrun's, or an older "
                    "mnist_ddp; an elastic job needs one of this version (mnist_ddp store serve)",
                    name);
    }
    TRY(st);
    *claim = claim_of(&answer);
    store_watch_free(&answer);
    self->ever = true;
    *out = client;
    return STATUS_OK;
}

/* Whether the job is rather at endpoint `other` than at `which`, where its claim is *claim: then
 * *claim is that of the other one. */
static bool is_better(c10d *self, int other, int which, int64_t *claim)
{
    store *client = NULL;
    int64_t there, timeout_ms = SCOUT_TIMEOUT_MS, share_ms = self->timeout_ms / self->n;
    /* A job that is nowhere begins only with its answer. */
    if (*claim == 0 && share_ms > timeout_ms)
        timeout_ms = share_ms;
    if (other == which || try_endpoint(self, other, timeout_ms, &client, &there) != STATUS_OK)
        return false;
    store_destroy(client);
    if (there < *claim || (there == *claim && other > which))
        return false;
    *claim = there;
    return true;
}

/* It is connected to `which`, where the job's claim is `claim`: goes to a better endpoint if there
 * is one. */
static void choose_endpoint(c10d *self, int which, int64_t claim)
{
    int best = which;
    store *client = NULL;
    for (int i = 0; i < self->n; i++)
        if (is_better(self, i, best, &claim))
            best = i;
    if (best != which && try_endpoint(self, best, self->timeout_ms, &client, &claim) == STATUS_OK) {
        store_destroy(self->client);
        self->client = client;
        which = best;
    }
    self->at = self->scouted = which;
    self->scout_ns = clock_deadline_ns(SCOUT_MS);
}

static bool is_woken(const c10d *self)
{
    struct pollfd wake = {.fd = self->wake_fd > 0 ? self->wake_fd : -1, .events = POLLIN};
    return poll(&wake, 1, 0) > 0;
}

/* Where the job is, from self->at on. All endpoints share the time of one call. */
static status connect_somewhere(c10d *self)
{
    status st = STATUS_OK;
    status_kept why = {0};
    int64_t claim = 0, end_ns = clock_deadline_ns(self->timeout_ms);
    for (int i = 0; i < self->n && (i == 0 || !is_woken(self)); i++) {
        int which = (self->at + i) % self->n;
        int64_t share_ms = clock_remaining_ms(end_ns) / (self->n - i);
        status one = try_endpoint(self, which, share_ms + 1, &self->client, &claim);
        if (one == STATUS_OK) {
            choose_endpoint(self, which, claim);
            return STATUS_OK;
        }
        if (one == STATUS_NO_MEMORY)
            return one;
        if (st == STATUS_OK || st == STATUS_REFUSED || one == STATUS_INVALID) {
            st = one; /* it is refused only if all are */
            status_keep(&why);
        }
    }
    status_restore(&why);
    return st;
}

static status connect_once(c10d *self)
{
    return self->client != NULL ? STATUS_OK : connect_somewhere(self);
}

/* After a call that has failed the next one goes to endpoint `next`. */
static status leave_for(c10d *self, int next, status st)
{
    status_kept kept;
    status_keep(&kept);
    store_destroy(self->client);
    self->client = NULL;
    self->at = next;
    status_restore(&kept);
    return st;
}

static status after(c10d *self, status st)
{
    return st == STATUS_OK ? st : leave_for(self, (self->at + 1) % self->n, st);
}

/* Another endpoint, if this node waits and it is time. */
static status scout(c10d *self)
{
    store_watch_answer here = {0};
    if (self->n == 1 || !self->waits || !clock_passed(self->scout_ns))
        return STATUS_OK;
    TRY(after(self,
              store_watch(self->client, &(store_watch_options){KEYS_STATE, -1, 0, 0}, &here)));
    int64_t claim = claim_of(&here);
    store_watch_free(&here);
    int other = self->scouted = (self->scouted + 1) % self->n;
    bool goes = is_better(self, other, self->at, &claim);
    self->scout_ns = clock_deadline_ns(other == self->at ? 0 : SCOUT_MS);
    if (!goes)
        return STATUS_OK;
    const endpoint *e = &self->endpoints[other];
    return leave_for(self, other,
                     FAIL(STATUS_PEER, "the nodes of this job meet at %s:%d", e->host, e->port));
}

static status add_key(const store_watch_key *key, rendezvous_view *view)
{
    if (strcmp(key->key, KEYS_STATE) == 0) {
        view->state = malloc(key->value_bytes + 1);
        if (view->state == NULL)
            return FAIL(STATUS_NO_MEMORY, "a job's state");
        memcpy(view->state, key->value, key->value_bytes + 1);
        view->state_bytes = key->value_bytes;
        view->state_revision = key->set;
        return STATUS_OK;
    }
    if (strncmp(key->key, KEYS_NODES, strlen(KEYS_NODES)) != 0)
        return STATUS_OK; /* nothing of ours */
    rendezvous_record *node = &view->nodes[view->n++];
    *node = (rendezvous_record){.id = strdup(key->key + strlen(KEYS_NODES)),
                                .value = strdup(key->value),
                                .order = key->created};
    return node->id != NULL && node->value != NULL ? STATUS_OK
                                                   : FAIL(STATUS_NO_MEMORY, "a node's record");
}

static status make_view(const store_watch_answer *answer, rendezvous_view *out)
{
    rendezvous_view view = {.revision = answer->revision};
    status st = STATUS_OK;
    view.nodes = calloc(answer->n + 1, sizeof *view.nodes);
    if (view.nodes == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu nodes' records", answer->n);
    for (size_t i = 0; i < answer->n && st == STATUS_OK; i++)
        st = add_key(&answer->keys[i], &view);
    if (st == STATUS_OK)
        *out = view;
    else
        rendezvous_view_free(&view);
    return st;
}

/* An endpoint at which the job may be: -1: none. A node that knows of no job begins none then. */
static int find_silent(const c10d *self)
{
    for (int i = 0; i < self->n; i++)
        if (self->endpoints[i].silent)
            return i;
    return -1;
}

static void tell_silent(const c10d *self, rendezvous_view *view)
{
    if (self->in_doubt < 0)
        return;
    const endpoint *e = &self->endpoints[self->in_doubt];
    snprintf(view->silent, sizeof view->silent, "%.100s:%d", e->host, e->port);
}

static status look(void *ctx, rendezvous_sight sight, int64_t revision, int64_t wait_ms,
                   rendezvous_view *out)
{
    c10d *self = ctx;
    store_watch_answer answer = {0};
    TRY(connect_once(self));
    TRY(scout(self));
    if (self->n > 1 && self->waits && wait_ms > SCOUT_MS)
        wait_ms = SCOUT_MS;
    int in_doubt = find_silent(self);
    if (in_doubt != self->in_doubt)
        revision = -1; /* that is news, too */
    self->in_doubt = in_doubt;
    store_watch_options how = {.prefix = sight == RENDEZVOUS_STATE ? KEYS_STATE : "",
                               .after = revision,
                               .wait_ms = wait_ms,
                               .wake_fd = self->wake_fd};
    TRY(after(self, store_watch(self->client, &how, &answer)));
    rendezvous_view view = {0}; /* nothing has changed */
    status st = answer.revision != 0 ? make_view(&answer, &view) : STATUS_OK;
    view.fallback = self->at > 0;
    tell_silent(self, &view);
    if (st == STATUS_OK)
        *out = view;
    store_watch_free(&answer);
    return st;
}

static status set_state(void *ctx, int64_t revision, const char *state, bool *set)
{
    c10d *self = ctx;
    int64_t now = 0;
    TRY(connect_once(self));
    store_put_options how = {.value = state, .expected = revision};
    TRY(after(self, store_put(self->client, KEYS_STATE, &how, &now)));
    *set = now != 0;
    return STATUS_OK;
}

static status put_node(void *ctx, const char *value, bool runs_nothing)
{
    c10d *self = ctx;
    int64_t revision;
    self->waits = runs_nothing;
    TRY(connect_once(self));
    store_put_options how = {.value = value,
                             .expected = -1,
                             .ttl_ms = self->ttl_ms,
                             .goes_with_connection = runs_nothing};
    return after(self, store_put(self->client, self->node, &how, &revision));
}

static status keep_alive(void *ctx)
{
    c10d *self = ctx;
    bool there = false;
    TRY(connect_once(self));
    TRY(after(self, store_renew(self->client, self->node, &there)));
    return there ? STATUS_OK
                 : FAIL(STATUS_INVALID, "this node's lease has ended: its record is not at %s:%d",
                        self->endpoints[self->at].host, self->endpoints[self->at].port);
}

static status remove_node(void *ctx)
{
    c10d *self = ctx;
    bool there;
    TRY(connect_once(self));
    return after(self, store_remove(self->client, self->node, &there));
}

const rendezvous_backend_ops rendezvous_c10d = {
    .name = "c10d",
    .ends_with_its_host = true,
    .open = open_c10d,
    .close = close_c10d,
    .look = look,
    .set_state = set_state,
    .put_node = put_node,
    .keep_alive = keep_alive,
    .remove_node = remove_node,
};
