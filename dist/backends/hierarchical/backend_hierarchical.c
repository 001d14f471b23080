/* The hierarchical backend: shm inside each host, another backend between them.
 *
 *     host 0          host 1
 *   rank 0 1        rank 2 3
 *        |_|             |_|       host: shm
 *        |_|____gloo_____| |       across: a group for each column, 0 with 2 and 1 with 3
 *          |____gloo_______|
 *
 * A third group, of all ranks, is for what would not gain: gather, scatter, all_to_all, send, recv;
 * and for all_gather and reduce_scatter if hosts have different numbers of ranks. The ranks do the
 * steps themselves, in wait(); only the network's moves on beside them.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "dist/backends/hierarchical/hierarchical.h"
#include "dist/health/first_cause.h"
#include "dist/membership/keys.h"
#include "dist/store/store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    RECORD_BYTES = 2048,
    NETWORK_GRACE_MS = 200, /* the dead rank's own host sees its process, and says which it was */
};

/* Another rank's failure, as failure_share has recorded it. */
static status adopt(const char *record, status own)
{
    int rank = 0, code = 0, skip = 0;
    if (sscanf(record, "%d %d %n", &rank, &code, &skip) != 2 || skip == 0)
        return own;
    bool keeps = code == STATUS_TIMEOUT || code == STATUS_INVALID;
    return FAIL(keeps ? (status)code : STATUS_PEER, "rank %d has found: %s", rank, record + skip);
}

/* `st` is this thread's latest failure. Returns the first one of all ranks: this one, or another,
 * whose message is then this thread's. Asks the store; a rank that has lost one of another host
 * gives that host's ranks a moment to say more. */
static status failure_share(const hierarchical *h, status st)
{
    char mine[RECORD_BYTES];
    status_kept own;
    void *held = NULL;
    size_t size_bytes = 0;
    keys_text key = keys_make(h->prefix, KEYS_FAILURE, -1);
    status_keep(&own);
    snprintf(mine, sizeof mine, "%d %d %.1900s", h->rank, (int)st, own.text);
    /* A store that does not answer is given up here, before the longer time of the next call. */
    (void)store_wait(h->store, key.text, h->host.failed ? 1 : NETWORK_GRACE_MS);
    status told = store_compare_set(h->store, key.text, "", mine, &held, &size_bytes);
    status_restore(&own);
    if (told != STATUS_OK || first_cause_priority(st) == CAUSE_OWN || atoi(held) == h->rank) {
        free(held);
        return st;
    }
    st = adopt(held, st);
    free(held);
    return st;
}

typedef struct hierarchical_work {
    struct hierarchical_work *next;
    collective what;
    void *inner; /* of the group of all ranks; NULL: it passes through the levels */
} hierarchical_work;

typedef struct backend {
    hierarchical h;
    pthread_mutex_t lock; /* of all below: launches may come from another thread than waits */
    hierarchical_work *first, *last;
    spares works;
} backend;

/* Sets h->places and all that follows from them. */
static status find_places(hierarchical *h, const int *hosts)
{
    int *ranks_of = calloc((size_t)h->world_size, sizeof *ranks_of);
    h->places = calloc((size_t)h->world_size, sizeof *h->places);
    if (h->places == NULL || ranks_of == NULL) {
        free(ranks_of);
        return FAIL(STATUS_NO_MEMORY, "the places of %d ranks", h->world_size);
    }
    for (int rank = 0; rank < h->world_size; rank++) {
        h->places[rank] = (rank_place){hosts[rank], ranks_of[hosts[rank]]++};
        if (hosts[rank] >= h->hosts)
            h->hosts = hosts[rank] + 1;
    }
    int most = h->columns = ranks_of[0];
    for (int host = 1; host < h->hosts; host++) {
        h->columns = ranks_of[host] < h->columns ? ranks_of[host] : h->columns;
        most = ranks_of[host] > most ? ranks_of[host] : most;
    }
    h->even = most == h->columns;
    free(ranks_of);
    return STATUS_OK;
}

typedef bool belongs_fn(const hierarchical *h, const rank_place *place);

static bool is_on_this_host(const hierarchical *h, const rank_place *place)
{
    return place->host == h->places[h->rank].host;
}

static bool is_in_this_column(const hierarchical *h, const rank_place *place)
{
    return place->local_rank == h->places[h->rank].local_rank && place->local_rank < h->columns;
}

static bool is_anywhere(const hierarchical *h, const rank_place *place)
{
    (void)h;
    (void)place;
    return true;
}

/* Sets l's ranks. Hosts are numbered by their lowest rank, but that of a column may be any: it is
 * in the order of the hosts. */
static status choose_ranks(const hierarchical *h, belongs_fn *belongs, level *l)
{
    bool by_host = belongs == is_in_this_column;
    l->rank = -1;
    l->ranks = calloc((size_t)h->world_size, sizeof *l->ranks);
    if (l->ranks == NULL)
        return FAIL(STATUS_NO_MEMORY, "a group of %d ranks", h->world_size);
    for (int rank = 0; rank < h->world_size; rank++)
        if (belongs(h, &h->places[rank])) {
            int number = by_host ? h->places[rank].host : l->n;
            l->ranks[number] = rank;
            l->n++;
            if (rank == h->rank)
                l->rank = number;
        }
    return STATUS_OK;
}

static status describe_levels(hierarchical *h, const group_setup *setup)
{
    bool one_host = h->hosts == 1;
    const rank_place *place = &h->places[h->rank];
    h->scratch_bytes = HIERARCHICAL_CHUNK_BYTES + (size_t)h->world_size * HIERARCHICAL_ROW_BYTES;
    h->host = (level){.ops = &shm_ops,
                      .name = "inside the host",
                      .one_host = true,
                      .shared_bytes =
                          setup->options->shared_bytes + HIERARCHICAL_AHEAD * h->scratch_bytes};
    h->across = (level){
        .ops = setup->between, .name = "between hosts", .one_host = one_host, .numbers = true};
    h->world = (level){.ops = setup->between, .name = "among all ranks", .one_host = one_host};
    snprintf(h->host.key, sizeof h->host.key, "host/%d/", place->host);
    snprintf(h->across.key, sizeof h->across.key, "column/%d/", place->local_rank);
    snprintf(h->world.key, sizeof h->world.key, "all/");
    TRY(choose_ranks(h, is_on_this_host, &h->host));
    TRY(choose_ranks(h, is_in_this_column, &h->across));
    return choose_ranks(h, is_anywhere, &h->world);
}

/* After a failure the levels that are left are declined: their other ranks wait for this one. */
static status open_levels(hierarchical *h, const group_setup *setup)
{
    level *levels[] = {&h->host, &h->across, &h->world};
    status st = STATUS_OK;
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (st == STATUS_OK)
            st = level_create(levels[i], setup);
        else
            level_decline(levels[i], setup);
    if (st != STATUS_OK)
        return st;
    return shm_ops.alloc(h->host.self, HIERARCHICAL_AHEAD * h->scratch_bytes, (void **)&h->scratch);
}

static void hierarchical_destroy(void *self)
{
    backend *b = self;
    hierarchical *h = &b->h;
    bool failed = h->host.failed || h->across.failed || h->world.failed;
    level_close(&h->world, failed);
    level_close(&h->across, failed);
    level_close(&h->host, false);
    while (b->first != NULL) {
        hierarchical_work *w = b->first;
        b->first = w->next;
        free(w);
    }
    spares_free(&b->works);
    pthread_mutex_destroy(&b->lock);
    free(h->places);
    free(b);
}

static status hierarchical_create(const group_setup *setup, void **self)
{
    const process_group_options *o = setup->options;
    backend *b = calloc(1, sizeof *b);
    if (b == NULL)
        return FAIL(STATUS_NO_MEMORY, "a hierarchical group");
    pthread_mutex_init(&b->lock, NULL);
    b->h.rank = o->rank;
    b->h.world_size = o->world_size;
    b->h.store = o->store;
    snprintf(b->h.prefix, sizeof b->h.prefix, "%s", setup->prefix);
    status st = find_places(&b->h, setup->hosts);
    if (st == STATUS_OK)
        st = describe_levels(&b->h, setup);
    if (st == STATUS_OK)
        st = open_levels(&b->h, setup);
    if (st != STATUS_OK) {
        hierarchical_destroy(b);
        return st;
    }
    *self = b;
    return STATUS_OK;
}

static status launch_among_all(backend *b, hierarchical_work *w)
{
    level *all = &b->h.world;
    if (hierarchical_has_levels(&b->h, &w->what))
        return STATUS_OK;
    status st = all->ops->launch(all->self, &w->what, NULL, &w->inner);
    return st == STATUS_OK ? st : level_fail(all, st);
}

static status hierarchical_launch(void *self, const collective *c, device_stream *stream,
                                  void **out_work)
{
    (void)stream;
    backend *b = self;
    pthread_mutex_lock(&b->lock);
    hierarchical_work *w = spares_take(&b->works, sizeof *w);
    status st = STATUS_OK;
    if (w == NULL) {
        st = FAIL(STATUS_NO_MEMORY, "a work of %zu bytes", sizeof *w);
        goto out;
    }
    w->what = *c;
    st = launch_among_all(b, w);
    if (st != STATUS_OK) {
        spares_give(&b->works, w);
        goto out;
    }
    *(b->first == NULL ? &b->first : &b->last->next) = w;
    *out_work = b->last = w;
out:
    pthread_mutex_unlock(&b->lock);
    return st;
}

static status hierarchical_wait(void *self, void *work_, int64_t deadline_ns, int64_t *done_ns)
{
    backend *b = self;
    hierarchical_work *w = work_;
    status st = w->inner != NULL ? level_wait(&b->h.world, w->inner, deadline_ns)
                                 : hierarchical_run(&b->h, &w->what, deadline_ns);
    *done_ns = clock_now_ns();
    if (st != STATUS_OK && !atomic_load(&b->h.aborted)) /* else its cause is not the group's */
        st = failure_share(&b->h, st);
    pthread_mutex_lock(&b->lock);
    ASSERT(b->first == w);
    b->first = w->next;
    spares_give(&b->works, w);
    pthread_mutex_unlock(&b->lock);
    return st;
}

static void hierarchical_abort(void *self, const char *why)
{
    hierarchical *h = &((backend *)self)->h;
    level *levels[] = {&h->host, &h->across, &h->world};
    atomic_store(&h->aborted, true);
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (levels[i]->self != NULL)
            levels[i]->ops->abort(levels[i]->self, why);
}

static status hierarchical_batch(void *self, bool begins)
{
    level *all = &((backend *)self)->h.world;
    return all->ops->batch == NULL ? STATUS_OK : all->ops->batch(all->self, begins);
}

static status hierarchical_alloc(void *self, size_t size_bytes, void **out)
{
    level *host = &((backend *)self)->h.host;
    return host->ops->alloc(host->self, size_bytes, out);
}

/* A rank moves as much as in a ring over all of them: 2 S (N - 1) / N bytes in an all_reduce if
 * hosts are alike, most of them inside its host. */
const process_group_ops hierarchical_ops = {
    .name = "hierarchical",
    .device_memory = false,
    .works_in_wait = true,
    .create = hierarchical_create,
    .launch = hierarchical_launch,
    .wait = hierarchical_wait,
    .batch = hierarchical_batch,
    .alloc = hierarchical_alloc,
    .abort = hierarchical_abort,
    .destroy = hierarchical_destroy,
    .traffic = collective_star_traffic,
};
