/* Collectives among threads of one process: --mode=dp's.
 *
 * All happens in wait(), between local_hub_begin and local_hub_end: every thread then sees the
 * others' arrays. In all_reduce each rank reduces one part of the elements, and writes it into all
 * ranks' arrays. In all others who takes reads from those that give (dist/collective/collective.h):
 * in reduce the root does all the work, as a parameter server does. Reductions go in rank order.
 */
#include "base/clock.h"
#include "dist/backends/local/local_hub.h"
#include "dist/backends/local/local_messages.h"
#include "dist/collective/collective.h"
#include "dist/collective/process_group_ops.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct local_work {
    struct local_work *next;
    collective what;
    local_message *message; /* of a send or recv; NULL: it is done */
    void *copy;             /* of `in`, or NULL */
} local_work;

typedef struct local_group {
    local_hub *hub;
    int rank, world_size;
    const void **ins; /* (world_size) */
    void **outs;      /* (world_size) */

    pthread_mutex_t lock;     /* of the list: launches may come from another thread than waits */
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

/* This rank's part of all arrays. */
static void all_reduce(local_group *g, const collective *const *all)
{
    const collective *c = all[g->rank];
    exchange_part part = exchange_part_of(c, c->count, g->rank, g->world_size);
    size_t begin_bytes = part.begin * dtype_size(c->type);
    for (int i = 0; i < g->world_size; i++) {
        g->ins[i] = (const unsigned char *)all[i]->in + begin_bytes;
        g->outs[i] = (unsigned char *)all[i]->out + begin_bytes;
    }
    reduce_parts parts = {g->ins, g->world_size, g->outs, g->world_size};
    if (part.begin < part.end)
        reduce_into(c->type, c->op, c->prescale, &parts, part.end - part.begin);
}

static void take(local_group *g, const collective *const *all)
{
    const collective *c = all[g->rank];
    size_t at_bytes = exchange_row(c, g->rank) * c->count * dtype_size(c->type);
    for (int i = 0; i < g->world_size; i++)
        g->ins[i] = exchange_gives(c, i) ? (const unsigned char *)all[i]->in + at_bytes : NULL;
    if (exchange_takes(c, g->rank))
        exchange_take(c, g->rank, g->world_size, g->ins, 0, c->count);
}

static status together(local_group *g, const collective *c, int64_t deadline_ns)
{
    const collective *const *all = NULL;
    TRY(local_hub_begin(g->hub, g->rank, c, deadline_ns, &all));
    status st = compare(g, all);
    if (st != STATUS_OK) {
        local_hub_refuse(g->hub, g->rank);
        return st;
    }
    if (c->kind == COLLECTIVE_ALL_REDUCE)
        all_reduce(g, all);
    else
        take(g, all);
    return local_hub_end(g->hub, g->rank, deadline_ns);
}

static void free_work(local_work *w)
{
    free(w->copy);
    free(w);
}

/* In place, a rank overwrites rows of an all_to_all that others have not read: they read a copy. */
static status copy_rows(const local_group *g, local_work *w)
{
    size_t size_bytes = collective_in_bytes(&w->what, g->rank, g->world_size);
    w->copy = malloc(size_bytes + 1);
    if (w->copy == NULL)
        return FAIL(STATUS_NO_MEMORY, "a copy of %zu bytes", size_bytes);
    memcpy(w->copy, w->what.in, size_bytes);
    w->what.in = w->copy;
    return STATUS_OK;
}

static status local_launch(void *self, const collective *c, device_stream *stream, void **out_work)
{
    (void)stream;
    local_group *g = self;
    status st = STATUS_OK;
    local_work *w = calloc(1, sizeof *w);
    if (w == NULL)
        return FAIL(STATUS_NO_MEMORY, "a work of %zu bytes", sizeof *w);
    w->what = *c;
    if (collective_is_send_or_recv(c->kind))
        st = local_hub_start(g->hub, g->rank, c, &w->message);
    else if (c->kind == COLLECTIVE_ALL_TO_ALL && c->in == c->out && c->count > 0)
        st = copy_rows(g, w);
    if (st != STATUS_OK) {
        free_work(w);
        return st;
    }
    pthread_mutex_lock(&g->lock);
    *(g->first == NULL ? &g->first : &g->last->next) = w;
    g->last = w;
    pthread_mutex_unlock(&g->lock);
    *out_work = w;
    return STATUS_OK;
}

static status local_wait(void *self, void *work_, int64_t deadline_ns, int64_t *done_ns)
{
    local_group *g = self;
    local_work *w = work_;
    status st = collective_is_send_or_recv(w->what.kind)
                    ? local_hub_finish(g->hub, w->message, deadline_ns)
                    : together(g, &w->what, deadline_ns);
    *done_ns = clock_now_ns();
    pthread_mutex_lock(&g->lock);
    ASSERT(g->first == w);
    g->first = w->next;
    pthread_mutex_unlock(&g->lock);
    free_work(w);
    return st;
}

static void local_abort(void *self, const char *why)
{
    (void)why;
    local_group *g = self;
    local_hub_leave(g->hub, g->rank);
}

static void local_destroy(void *self)
{
    local_group *g = self;
    local_hub_leave(g->hub, g->rank);
    while (g->first != NULL) {
        local_work *w = g->first;
        g->first = w->next;
        local_hub_drop(g->hub, w->message);
        free_work(w);
    }
    pthread_mutex_destroy(&g->lock);
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
    *g = (local_group){
        .hub = o->hub, .rank = o->rank, .world_size = o->world_size, .ins = ins, .outs = outs};
    pthread_mutex_init(&g->lock, NULL);
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
    .abort = local_abort,
    .destroy = local_destroy,
    .traffic = collective_star_traffic,
};
