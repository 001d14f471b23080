/* The rendezvous service on our store (dist/store/store.h): a state and a record per node, as
 * watched keys. There is one store, and the job ends with its host: who wants a rendezvous that
 * survives its host has etcd, which replicates.
 */
#include "dist/elastic/rdzv_ops.h"
#include "dist/membership/keys.h"
#include "dist/net/socket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_PORT = 29400, HOST_BYTES = 256 };

typedef struct c10d {
    char host[HOST_BYTES];
    int port;
    char prefix[KEYS_BYTES];
    char node[KEYS_BYTES]; /* the key of its record */
    int64_t ttl_ms, timeout_ms;
    int wake_fd;
    store *client; /* NULL: not connected */
    bool ever;     /* a store of ours has answered */
} c10d;

static void close_c10d(void *ctx)
{
    c10d *self = ctx;
    if (self == NULL)
        return;
    store_destroy(self->client);
    free(self);
}

static status open_c10d(const rdzv_service_options *options, void **out)
{
    c10d *self = calloc(1, sizeof *self);
    if (self == NULL)
        return FAIL(STATUS_NO_MEMORY, "a rendezvous");
    self->ttl_ms = options->ttl_ms;
    self->timeout_ms = options->timeout_ms;
    self->wake_fd = options->wake_fd;
    status st = socket_address_parse(options->endpoints, DEFAULT_PORT, self->host,
                                     sizeof self->host, &self->port);
    if (st == STATUS_OK)
        st = rdzv_prefix(options->run_id, self->prefix, sizeof self->prefix);
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

static status join_store(const c10d *self, store **out)
{
    return store_create(&(store_options){.host = self->host,
                                         .port = self->port,
                                         .prefix = self->prefix,
                                         .timeout_ms = self->timeout_ms,
                                         .connect_timeout_ms = self->timeout_ms,
                                         .once = true},
                        out);
}

/* STATUS_INVALID if what listens there is no store, and never was; or if it is a store, but closes
 * the connection at a request of ours, twice. One that is short of descriptors does that, too: not
 * at first. */
static status connect_once(c10d *self)
{
    status st = STATUS_PEER;
    store *client = NULL;
    for (int i = 0; i < 2 && st == STATUS_PEER && self->client == NULL; i++) {
        store_watch_answer answer = {0};
        status joined = join_store(self, &client);
        if (joined == STATUS_INVALID && self->ever)
            joined = STATUS_PEER; /* it may be a store again later */
        TRY(joined);
        st = store_watch(client, &(store_watch_options){KEYS_STATE, -1, 0, 0}, &answer);
        if (st == STATUS_OK)
            self->client = client;
        else
            store_destroy(client);
        store_watch_free(&answer);
    }
    if (self->client != NULL) {
        self->ever = true;
        return STATUS_OK;
    }
    if (st == STATUS_PEER) {
        char name[SOCKET_ADDRESS_BYTES];
        socket_address_name(self->host, self->port, name);
        return FAIL(self->ever ? STATUS_PEER : STATUS_INVALID,
                    "what listens at %s is a store without leases: torchrun's, or an older "
                    "mnist_ddp; an elastic job needs one of this version (mnist_ddp store serve)",
                    name);
    }
    return st;
}

/* After a call that has failed the next one connects anew. */
static status after(c10d *self, status st)
{
    status_kept kept;
    if (st == STATUS_OK)
        return st;
    status_keep(&kept);
    store_destroy(self->client);
    self->client = NULL;
    status_restore(&kept);
    return st;
}

static status make_view(const store_watch_answer *answer, rdzv_view *out)
{
    rdzv_view view = {.revision = answer->revision};
    status st = STATUS_OK;
    for (size_t i = 0; i < answer->n && st == STATUS_OK; i++)
        st = rdzv_view_add(&view, KEYS_NODES, &answer->keys[i]);
    if (st == STATUS_OK)
        *out = view;
    else
        rdzv_view_free(&view);
    return st;
}

static status look(void *ctx, rdzv_scope scope, int64_t revision, int64_t wait_ms, rdzv_view *out)
{
    c10d *self = ctx;
    store_watch_answer answer = {0};
    TRY(connect_once(self));
    store_watch_options how = {.prefix = scope == RDZV_STATE ? KEYS_STATE : "",
                               .after = revision,
                               .wait_ms = wait_ms,
                               .wake_fd = self->wake_fd};
    TRY(after(self, store_watch(self->client, &how, &answer)));
    status st = make_view(&answer, out); /* empty if nothing has changed */
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
                        self->host, self->port);
}

static status remove_node(void *ctx)
{
    c10d *self = ctx;
    bool there;
    TRY(connect_once(self));
    return after(self, store_remove(self->client, self->node, &there));
}

const rdzv_ops rdzv_c10d = {
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
