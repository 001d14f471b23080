/* Collectives among threads of one process: --mode=dp's.
 *
 * All happens in wait(), between local_hub_begin and local_hub_end: every thread then sees the
 * others' arrays. In all_reduce each rank sums one part of the elements. In broadcast each receiver
 * copies. In reduce the root does all the work, as a parameter server does. Sums go in rank order.
 * After a timeout a peer may still use a rank's data: free it when all threads have ended.
 */
#include "base/clock.h"
#include "dist/backends/local/local_hub.h"
#include "dist/collective/collective.h"
#include "dist/collective/process_group_ops.h"
#include "dist/collective/reduce.h"

#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 64 };

typedef struct local_work {
    struct local_work *next;
    collective what;
} local_work;

typedef struct local_group {
    local_hub *hub;
    int rank, world_size;
    const void **ins;         /* (world_size) */
    void **outs;              /* (world_size) */
    local_work *first, *last; /* launched and not waited for */
} local_group;

/* All must have come with the same. */
static status compare(const local_group *g, const collective *const *all)
{
    const collective *c = all[g->rank];
    for (int rank = 0; rank < g->world_size; rank++) {
        const collective *other = all[rank];
        bool same_scale = !(other->prescale < c->prescale || other->prescale > c->prescale);
        if (other->kind != c->kind || other->type != c->type || other->count != c->count ||
            other->op != c->op || other->root != c->root || !same_scale)
            return FAIL(STATUS_INVALID,
                        "rank %d issued another collective: %s of %zu elements, but this rank "
                        "issued %s of %zu, or op, type, root or prescale differ",
                        rank, collective_kind_name(other->kind), other->count,
                        collective_kind_name(c->kind), c->count);
    }
    return STATUS_OK;
}

/* This rank's part of all arrays. Parts are cut at whole cache lines. */
static void all_reduce(local_group *g, const collective *const *all)
{
    const collective *c = all[g->rank];
    size_t size = dtype_size(c->type), per_line = LINE_BYTES / size;
    size_t n = (size_t)g->world_size, rank = (size_t)g->rank;
    size_t lines = (c->count + per_line - 1) / per_line;
    size_t begin = lines * rank / n * per_line, end = lines * (rank + 1) / n * per_line;
    if (end > c->count)
        end = c->count;
    for (size_t i = 0; i < n; i++) {
        g->ins[i] = (const unsigned char *)all[i]->in + begin * size;
        g->outs[i] = (unsigned char *)all[i]->out + begin * size;
    }
    reduce_parts parts = {g->ins, (int)n, g->outs, (int)n};
    if (begin < end)
        reduce_into(c->type, c->op, c->prescale, &parts, end - begin);
}

static void reduce(local_group *g, const collective *const *all)
{
    const collective *c = all[g->rank];
    for (int i = 0; i < g->world_size; i++)
        g->ins[i] = all[i]->in;
    g->outs[0] = c->out;
    reduce_parts parts = {g->ins, g->world_size, g->outs, 1};
    if (c->root == g->rank)
        reduce_into(c->type, c->op, c->prescale, &parts, c->count);
}

static void broadcast(const local_group *g, const collective *const *all)
{
    const collective *c = all[g->rank];
    if (c->root != g->rank)
        memcpy(c->out, all[c->root]->in, c->count * dtype_size(c->type));
}

static status together(local_group *g, const collective *c, int64_t deadline_ns)
{
    const collective *const *all = NULL;
    TRY(local_hub_begin(g->hub, g->rank, c, deadline_ns, &all));
    TRY(compare(g, all));
    if (c->kind == COLLECTIVE_ALL_REDUCE)
        all_reduce(g, all);
    else if (c->kind == COLLECTIVE_REDUCE)
        reduce(g, all);
    else if (c->kind == COLLECTIVE_BROADCAST)
        broadcast(g, all);
    return local_hub_end(g->hub, g->rank, deadline_ns);
}

static status local_launch(void *self, const collective *c, device_stream *stream, void **out_work)
{
    (void)stream;
    local_group *g = self;
    if (c->kind > COLLECTIVE_REDUCE && !collective_is_send_or_recv(c->kind))
        return FAIL(STATUS_INVALID, "backend local has no %s", collective_kind_name(c->kind));
    local_work *w = calloc(1, sizeof *w);
    if (w == NULL)
        return FAIL(STATUS_NO_MEMORY, "a work of %zu bytes", sizeof *w);
    w->what = *c;
    *(g->first == NULL ? &g->first : &g->last->next) = w;
    g->last = w;
    *out_work = w;
    return STATUS_OK;
}

static status local_wait(void *self, void *work_, int64_t deadline_ns, int64_t *done_ns)
{
    local_group *g = self;
    local_work *w = work_;
    const collective *c = &w->what;
    status st = c->kind == COLLECTIVE_SEND   ? local_hub_send(g->hub, g->rank, c, deadline_ns)
                : c->kind == COLLECTIVE_RECV ? local_hub_receive(g->hub, g->rank, c, deadline_ns)
                                             : together(g, c, deadline_ns);
    *done_ns = clock_now_ns();
    ASSERT(g->first == w);
    g->first = w->next;
    free(w);
    return st;
}

static void local_destroy(void *self)
{
    local_group *g = self;
    local_hub_leave(g->hub, g->rank);
    while (g->first != NULL) {
        local_work *w = g->first;
        g->first = w->next;
        free(w);
    }
    free(g->ins);
    free(g->outs);
    free(g);
}

static status local_create(const group_setup *setup, void **self)
{
    const process_group_options *o = setup->options;
    size_t n = (size_t)o->world_size;
    if (local_hub_world_size(o->hub) != o->world_size)
        return FAIL(STATUS_INVALID, "a hub of %d threads for %d ranks",
                    local_hub_world_size(o->hub), o->world_size);
    local_group *g = calloc(1, sizeof *g);
    const void **ins = calloc(n, sizeof *ins);
    void **outs = calloc(n, sizeof *outs);
    if (g == NULL || ins == NULL || outs == NULL) {
        free(g);
        free(ins);
        free(outs);
        return FAIL(STATUS_NO_MEMORY, "a local group of %zu ranks", n);
    }
    *g = (local_group){.hub = o->hub, .rank = o->rank, .world_size = o->world_size, ins, outs};
    *self = g;
    return STATUS_OK;
}

const process_group_ops local_ops = {
    .name = "local",
    .device_memory = false,
    .works_in_wait = true,
    .create = local_create,
    .launch = local_launch,
    .wait = local_wait,
    .destroy = local_destroy,
    .traffic = collective_star_traffic,
};
