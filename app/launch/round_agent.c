#include "app/launch/round_agent.h"

#include "app/common/round_fence.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct round_agent {
    worker_spec *spec;
    event_log *events;
    rdzv_handle *rdzv;
    round_fence *fence;
    rdzv_news news;              /* as of the last look */
    int *nprocs;                 /* of the round's nodes: the spec's; NULL before the first */
    char (*ids)[ROUND_ID_BYTES]; /* likewise: their ids, */
    const char **lost;           /* and those of them that are lost */
    int n_lost;
};

void round_agent_make_id(char out[ROUND_ID_BYTES])
{
    char host[64] = "?";
    if (gethostname(host, sizeof host - 1) != 0)
        strcpy(host, "?");
    snprintf(out, ROUND_ID_BYTES, "%.60s_%d_%llx", host, (int)getpid(),
             (unsigned long long)clock_now_ns());
}

/* Nodes of the round before that are not in this one. */
static void log_gone(round_agent *self, const round_state *now)
{
    for (int i = 0; i < self->spec->nnodes && self->ids != NULL; i++)
        if (round_rank_of(now, self->ids[i]) < 0)
            event_log_node_gone(self->events, now->round, self->ids[i]);
}

static status join_rendezvous(round_agent *self, const char *id)
{
    const worker_spec *spec = self->spec;
    rdzv_options how = {
        .backend = spec->rdzv == RDZV_ETCD ? &rdzv_etcd : &rdzv_c10d,
        .endpoints = spec->endpoints,
        .run_id = spec->run_id,
        .access = &spec->access,
        .self = {.nproc = spec->nproc, .port = spec->master_port},
        .min_nodes = spec->min_nodes,
        .max_nodes = spec->max_nodes,
        .join_ms = spec->join_ms,
        .last_call_ms = spec->last_call_ms,
        .read_ms = spec->read_ms,
        .keep_alive_ms = spec->keep_alive_ms,
        .keep_alive_misses = spec->keep_alive_misses,
    };
    snprintf(how.self.id, sizeof how.self.id, "%s", id);
    if (strlen(spec->master_addr) >= sizeof how.self.address)
        return FAIL(STATUS_INVALID, "this node's address is longer than %d letters: %.80s",
                    ROUND_ADDRESS_BYTES - 1, spec->master_addr);
    snprintf(how.self.address, sizeof how.self.address, "%s", spec->master_addr);
    return rdzv_open(&how, &self->rdzv);
}

status round_agent_create(worker_spec *spec, const char *id, event_log *events, round_agent **out)
{
    round_agent *self = calloc(1, sizeof *self);
    if (self == NULL)
        return FAIL(STATUS_NO_MEMORY, "an agent's part in the rounds");
    self->spec = spec;
    self->events = events;
    status st = round_fence_create(&self->fence);
    if (st == STATUS_OK)
        st = join_rendezvous(self, id);
    if (st == STATUS_OK)
        *out = self;
    else
        round_agent_destroy(self);
    return st;
}

void round_agent_destroy(round_agent *self)
{
    if (self == NULL)
        return;
    rdzv_close(self->rdzv);
    round_fence_close(self->fence);
    self->spec->nprocs = NULL;
    free(self->nprocs);
    free(self->ids);
    free(self->lost);
    free(self);
}

int round_agent_fd(const round_agent *self)
{
    return rdzv_fd(self->rdzv);
}

int round_agent_fence_fd(const round_agent *self)
{
    return round_fence_fd(self->fence);
}

rdzv_news round_agent_look(round_agent *self)
{
    self->news = rdzv_watch(self->rdzv);
    if (self->news.phase == RDZV_RUNS && clock_passed(self->news.valid_until_ns)) {
        self->news.phase = RDZV_LEAVES;
        self->news.ending = ROUND_BADLY;
        self->news.reason =
            "this node's lease has ended, as the rendezvous does not answer in time";
    }
    round_fence_set(self->fence, self->news.phase == RDZV_RUNS || self->news.phase == RDZV_LEAVES
                                     ? self->news.valid_until_ns
                                     : 0);
    return self->news;
}

/* "hostA (ranks 0-7), hostB (ranks 8-11)" */
static void describe(const round_state *now, char *out, size_t size_bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0, first = 0; i < now->n && used < size_bytes; first += now->members[i++].nproc) {
        const round_node *node = &now->members[i];
        const char *before = i > 0 ? ", " : "";
        if (node->nproc == 1)
            used += (size_t)snprintf(out + used, size_bytes - used, "%s%s (rank %d)", before,
                                     round_host_of(node->id).text, first);
        else
            used += (size_t)snprintf(out + used, size_bytes - used, "%s%s (ranks %d-%d)", before,
                                     round_host_of(node->id).text, first, first + node->nproc - 1);
    }
}

status round_agent_begin(round_agent *self)
{
    const round_state *now = self->news.now;
    worker_spec *spec = self->spec;
    char nodes[600];
    log_gone(self, now);
    spec->nprocs = NULL;
    free(self->nprocs);
    free(self->ids);
    free(self->lost);
    self->nprocs = calloc((size_t)now->n, sizeof *self->nprocs);
    self->ids = calloc((size_t)now->n, sizeof *self->ids);
    self->lost = calloc((size_t)now->n, sizeof *self->lost);
    self->n_lost = 0;
    if (self->nprocs == NULL || self->ids == NULL || self->lost == NULL)
        return FAIL(STATUS_NO_MEMORY, "a round of %d nodes", now->n);
    spec->world_size = 0;
    for (int i = 0; i < now->n; i++) {
        self->nprocs[i] = now->members[i].nproc;
        memcpy(self->ids[i], now->members[i].id, sizeof self->ids[i]);
        spec->world_size += self->nprocs[i];
    }
    spec->nprocs = self->nprocs;
    spec->nnodes = now->n;
    spec->node_rank = self->news.node_rank;
    spec->round = now->round;
    spec->restarts = now->restarts;
    snprintf(spec->master_addr, sizeof spec->master_addr, "%s", now->members[0].address);
    spec->master_port = now->members[0].port;
    event_log_round_begins(self->events, now, spec->node_rank);
    describe(now, nodes, sizeof nodes);
    LOG_I("round %lld: %d node%s, %d ranks: %s; this is node %d", (long long)now->round, now->n,
          now->n == 1 ? "" : "s", spec->world_size, nodes, spec->node_rank);
    return STATUS_OK;
}

void round_agent_note_lost(round_agent *self, int node)
{
    const worker_spec *spec = self->spec;
    if (node >= spec->nnodes || node == spec->node_rank || self->n_lost == spec->nnodes)
        return;
    self->lost[self->n_lost++] = self->ids[node];
    event_log_node_lost(self->events, spec->round, self->ids[node]);
}

void round_agent_left(round_agent *self, round_parting how)
{
    if (how == ROUND_PARTING_APART && self->spec->node_rank == 0)
        round_agent_note_lost(self, self->spec->nnodes - 1);
    rdzv_departure departure = {.lost = self->lost,
                                .n_lost = self->n_lost,
                                .restarts = self->spec->restarts + (how == ROUND_PARTING_COUNTS),
                                .unmet = how == ROUND_PARTING_UNMET || how == ROUND_PARTING_APART};
    round_fence_set(self->fence, 0);
    rdzv_leave(self->rdzv, &departure);
}

void round_agent_close(round_agent *self, round_ending ending)
{
    const char *reason = ending == ROUND_WELL ? "all ranks have ended well" : "a rank has failed";
    event_log_closed(self->events, self->spec->round, reason);
    rdzv_end_job(self->rdzv, ending, reason);
}
