/* The rendezvous on etcd. Of a job there is, under mnist_ddp/rdzv/<run id>/
 *
 *   state       the state, under a lease that all nodes of the job renew: it goes some time after
 *               the last of them, and with it the job's name is free again
 *   node/<id>   a node's record, under that node's lease
 */
#include "base/clock.h"
#include "base/digest.h"
#include "dist/elastic/etcd.h"
#include "dist/elastic/rdzv_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PREFIX_BYTES = 512,
    KEY_BYTES = PREFIX_BYTES + 256,
    STATE_TTL_MS = 2 * 3600 * 1000, /* as torch keeps it */
    STATE_RENEW_MS = STATE_TTL_MS / 12,
};

typedef struct job {
    etcd_gateway *etcd;
    char prefix[PREFIX_BYTES], state_key[KEY_BYTES], node_key[KEY_BYTES];
    int64_t ttl_ms;
    int wake_fd;         /* -1: none */
    int64_t lease;       /* of this node; 0: none */
    int64_t state_lease; /* an id that all nodes know */
    int64_t state_renew_ns;
} job;

static void job_close(void *self)
{
    job *j = self;
    if (j == NULL)
        return;
    etcd_gateway_close(j->etcd);
    free(j);
}

static status job_open(const rdzv_service_options *options, void **out)
{
    job *j = calloc(1, sizeof *j);
    if (j == NULL)
        return FAIL(STATUS_NO_MEMORY, "a rendezvous by etcd");
    status st = rdzv_prefix(options->run_id, j->prefix, sizeof j->prefix);
    snprintf(j->state_key, KEY_BYTES, "%sstate", j->prefix);
    int length = snprintf(j->node_key, KEY_BYTES, "%snode/%s", j->prefix, options->node_id);
    if (st == STATUS_OK && length >= KEY_BYTES)
        st = FAIL(STATUS_INVALID, "a node's id is too long: %.64s...", options->node_id);
    j->ttl_ms = options->ttl_ms;
    j->wake_fd = options->wake_fd > 0 ? options->wake_fd : -1;
    j->state_renew_ns = clock_deadline_ns(STATE_RENEW_MS);
    j->state_lease = (int64_t)(fnv1a(FNV1A_START, j->prefix, strlen(j->prefix)) >> 1 | 1);
    if (st == STATUS_OK)
        st = etcd_gateway_open(options->endpoints, options->access, options->timeout_ms, &j->etcd);
    if (st != STATUS_OK) {
        job_close(j);
        return st;
    }
    *out = j;
    return STATUS_OK;
}

/* Moves what a pair says into the view, which takes its texts over. */
static void take_pair(const job *j, etcd_pair *pair, rdzv_view *view)
{
    size_t length = strlen(j->prefix);
    if (strncmp(pair->key, j->prefix, length) != 0)
        return;
    if (strcmp(pair->key, j->state_key) == 0) {
        view->state = pair->value;
        view->state_bytes = pair->value_bytes;
        view->state_revision = pair->modified;
        pair->value = NULL;
    } else if (strncmp(pair->key + length, "node/", 5) == 0) {
        memmove(pair->key, pair->key + length + 5, strlen(pair->key + length + 5) + 1);
        view->nodes[view->n++] = (rdzv_record){pair->key, pair->value, pair->created};
        pair->key = pair->value = NULL;
    }
}

static status job_look(void *self, rdzv_scope scope, int64_t after, int64_t wait_ms, rdzv_view *out)
{
    job *j = self;
    const char *keys = scope == RDZV_STATE ? j->state_key : j->prefix; /* as they begin */
    etcd_pairs pairs = {0};
    if (after >= 0 && wait_ms > 0)
        TRY(etcd_await_change(j->etcd, keys, after + 1, wait_ms, j->wake_fd));
    TRY(etcd_list(j->etcd, keys, &pairs));
    rdzv_view view = {.revision = pairs.revision,
                      .nodes = calloc((size_t)pairs.n + 1, sizeof *view.nodes)};
    for (int i = 0; view.nodes != NULL && i < pairs.n; i++)
        take_pair(j, &pairs.pairs[i], &view);
    etcd_pairs_free(&pairs);
    if (view.nodes == NULL)
        return FAIL(STATUS_NO_MEMORY, "the nodes of a rendezvous");
    *out = view;
    return STATUS_OK;
}

/* The state outlives all nodes for STATE_TTL_MS. */
static status keep_state(job *j)
{
    bool lives = false;
    TRY(etcd_lease_renew(j->etcd, j->state_lease, &lives));
    if (!lives) /* or another node has just begun it */
        TRY(etcd_lease_grant(j->etcd, j->state_lease, STATE_TTL_MS, &j->state_lease));
    j->state_renew_ns = clock_deadline_ns(STATE_RENEW_MS);
    return STATUS_OK;
}

static status job_set_state(void *self, int64_t state_revision, const char *state, bool *set)
{
    job *j = self;
    etcd_put_result result = ETCD_PUT_NO_LEASE;
    TRY(keep_state(j));
    TRY(etcd_put(j->etcd, &(etcd_value){j->state_key, state, j->state_lease, state_revision},
                 &result));
    if (result == ETCD_PUT_NO_LEASE)
        return FAIL(STATUS_PEER, "etcd has ended the lease of the job's state at this moment");
    *set = result == ETCD_PUT;
    return STATUS_OK;
}

static status job_put_node(void *self, const char *value, bool runs_nothing)
{
    job *j = self;
    bool lives = false;
    etcd_put_result result = ETCD_PUT_NO_LEASE;
    (void)runs_nothing;
    if (j->lease != 0)
        TRY(etcd_lease_renew(j->etcd, j->lease, &lives));
    if (!lives)
        TRY(etcd_lease_grant(j->etcd, 0, j->ttl_ms, &j->lease));
    TRY(etcd_put(j->etcd, &(etcd_value){j->node_key, value, j->lease, ETCD_ANY_REVISION}, &result));
    return result == ETCD_PUT
               ? STATUS_OK
               : FAIL(STATUS_PEER, "etcd has ended this node's lease before its record was there");
}

static status job_keep_alive(void *self)
{
    job *j = self;
    bool lives = false;
    if (j->lease != 0)
        TRY(etcd_lease_renew(j->etcd, j->lease, &lives));
    if (!lives) {
        j->lease = 0;
        return FAIL(STATUS_INVALID,
                    "etcd has ended this node's lease: it was not renewed for %.3g s",
                    (double)j->ttl_ms / 1000);
    }
    if (clock_passed(j->state_renew_ns))
        (void)keep_state(j); /* the next call tries again */
    return STATUS_OK;
}

static status job_remove_node(void *self)
{
    job *j = self;
    if (j->lease != 0)
        TRY(etcd_lease_revoke(j->etcd, j->lease));
    j->lease = 0;
    return STATUS_OK;
}

const rdzv_ops rdzv_etcd = {.name = "etcd",
                            .open = job_open,
                            .close = job_close,
                            .look = job_look,
                            .set_state = job_set_state,
                            .put_node = job_put_node,
                            .keep_alive = job_keep_alive,
                            .remove_node = job_remove_node};
