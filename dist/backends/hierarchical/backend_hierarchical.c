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
#include "dist/collective/collective.h"
#include "dist/collective/process_group_ops.h"
#include "dist/health/first_cause.h"
#include "dist/health/peers.h"
#include "dist/membership/keys.h"
#include "dist/store/store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A hierarchical group: the levels it is made of, and how a collective passes through them. */

/* One of the groups that a hierarchical group is made of: some of its ranks, and the backend that
 * connects them. */
typedef struct level {
    const process_group_ops *ops;
    const char *name; /* in messages, "between hosts" */
    char key[16]; /* its keys in the store begin so, after the whole group's prefix: "host/0/" */
    bool one_host;
    bool numbers; /* its collectives get numbers of their own: gloo tells them apart by those */
    size_t shared_bytes;
    int *ranks;  /* (n): of the whole group; owned */
    int n, rank; /* rank: this rank's number in it; -1: it is not in it */

    void *self;   /* NULL: nobody to talk to */
    uint64_t seq; /* the latest collective's, if the level numbers them */
    bool failed;
} level;

/* As a backend's wait; `w` may be NULL. */
static status level_wait(level *l, void *w, int64_t deadline_ns);

enum {
    HIERARCHICAL_CHUNK_BYTES = 1 << 20,
    HIERARCHICAL_AHEAD = 2,      /* chunks under way at once */
    HIERARCHICAL_ROW_BYTES = 64, /* room for rows that are rounded up, each a rank's of a host */
};

/* Where a rank runs. */
typedef struct rank_place {
    int host; /* hosts are numbered by their lowest rank */
    int local_rank;
} rank_place;

typedef struct hierarchical {
    int rank, world_size, hosts;
    rank_place *places; /* (world_size) */
    int columns;        /* ranks of each host that talk to other hosts: the fewest that one has */
    bool even;          /* every host has that many */
    level host;         /* the ranks of this host */
    level across;       /* a column: those of one local_rank, of all hosts in their order; if
                           local_rank < columns */
    level world;        /* all ranks */
    unsigned char *scratch; /* HIERARCHICAL_AHEAD times scratch_bytes, in the host's memory */
    size_t scratch_bytes;
    atomic_bool aborted;
    struct store *store;                     /* borrowed */
    char prefix[PROCESS_GROUP_PREFIX_BYTES]; /* stands before the group's keys in it */
} hierarchical;

/* A collective on two levels: three steps, of which the middle one alone uses the network.
 *
 *                    inside the host    between hosts            back inside the host
 *   all_reduce       reduce_scatter     all_reduce of a part     all_gather
 *     if small, or   reduce to column 0 all_reduce of column 0   broadcast from column 0
 *     hosts differ
 *   broadcast        root's host:       broadcast                others: broadcast
 *                    broadcast
 *   reduce           reduce             reduce                   root's host: broadcast, unless
 *                                                                the root has the sum
 *   all_gather                          all_gather               all_gather
 *   reduce_scatter   reduce_scatter     reduce_scatter
 *   barrier          barrier            barrier of column 0      barrier
 *
 * The ranks with one local_rank are a column. Those of a column do the middle step together, and
 * all columns do so at once. Hosts sum in their ranks' order, then the hosts' sums are added in the
 * hosts' order: the same bits for every chunk size, for either all_reduce, and on every rank.
 *
 * Data passes in chunks. While the network carries one, the ranks of the host work on the next one
 * and on the one before. All ranks do the steps of all chunks in the order that the arguments fix.
 */

/* What the level's backend is made from; lives as long as this. */
typedef struct level_setup {
    process_group_options options;
    char prefix[PROCESS_GROUP_PREFIX_BYTES];
    group_setup setup;
} level_setup;

static status describe(const level *l, const group_setup *whole, level_setup *out)
{
    out->options = *whole->options;
    out->options.rank = l->rank;
    out->options.world_size = l->n;
    out->options.shared_bytes = l->shared_bytes;
    int length = snprintf(out->prefix, sizeof out->prefix, "%s%s", whole->prefix, l->key);
    if (length < 0 || (size_t)length >= sizeof out->prefix)
        return FAIL(STATUS_INVALID, "sub-groups of sub-groups, too deep: at %s", whole->prefix);
    out->setup =
        (group_setup){.options = &out->options, .prefix = out->prefix, .one_host = l->one_host};
    return STATUS_OK;
}

/* After a failure in it: this thread's message gets the whole group's ranks and says which level it
 * was. Returns st. */
static status level_fail(level *l, status st)
{
    first_cause_rename(l->ranks, l->n);
    l->failed = true;
    return status_context(st, "%s (%s)", l->name, l->ops->name);
}

static bool is_needed(const level *l)
{
    return l->rank >= 0 && (l->n > 1 || l->shared_bytes > 0);
}

/* Connects the ranks; the fields above `self` are set. Nothing to do if this rank is not in it, or
 * is alone in it and needs no memory of it. Fails as the backend's create, with the whole group's
 * ranks in the message. */
static status level_create(level *l, const group_setup *whole)
{
    level_setup made;
    if (!is_needed(l))
        return STATUS_OK;
    TRY(describe(l, whole, &made));
    status st = l->ops->create(&made.setup, &l->self);
    return st == STATUS_OK ? st : level_fail(l, st);
}

/* Instead, after a failure elsewhere: the other ranks of it hear this thread's message. */
static void level_decline(const level *l, const group_setup *whole)
{
    level_setup made;
    if (is_needed(l) && describe(l, whole, &made) == STATUS_OK)
        peers_decline(&made.setup);
}

/* Starts a collective among its ranks. *out_work: for level_wait,
 * NULL if there is nothing to wait for. */
static status level_launch(level *l, const collective *c, void **out_work)
{
    collective numbered = *c;
    *out_work = NULL;
    if (l->n == 1) {
        collective_do_alone(c);
        return STATUS_OK;
    }
    if (l->numbers)
        numbered.seq = ++l->seq;
    status st = l->ops->launch(l->self, &numbered, NULL, out_work);
    return st == STATUS_OK ? st : level_fail(l, st);
}

static status level_wait(level *l, void *w, int64_t deadline_ns)
{
    int64_t done_ns = 0;
    if (w == NULL)
        return STATUS_OK;
    status st = l->ops->wait(l->self, w, deadline_ns, &done_ns);
    return st == STATUS_OK ? st : level_fail(l, st);
}

/* abandons: something has failed, so its ranks part without a goodbye. Accepts all zero. */
static void level_close(level *l, bool abandons)
{
    void *never_waited_for = NULL;
    if (l->self != NULL) {
        /* A backend that ends with work under way does not wait for its peers. No barrier of theirs
         * has that number: else they could pass it by this one. */
        if (abandons && !l->failed)
            (void)l->ops->launch(
                l->self,
                &(collective){.kind = COLLECTIVE_BARRIER, .prescale = 1, .seq = UINT64_MAX}, NULL,
                &never_waited_for);
        l->ops->destroy(l->self);
    }
    free(l->ranks);
    *l = (level){0};
}

enum { INSIDE, ACROSS, BACK, STEPS };

enum {
    LINE_BYTES = 64,
    COLUMNS_FROM_BYTES = 1 << 20, /* below, fewer messages are faster than shared work */
    STEP_GRACE_MS = 250,
};

typedef struct chunk {
    size_t at, count;        /* elements of the collective; of a row, if it has rows */
    unsigned char *scratch;  /* on its way through this, if it needs to */
    collective steps[STEPS]; /* kind COLLECTIVE_KIND_COUNT: this rank has no such step */
    void *sum;               /* set by ACROSS: an average's sum, of sum_count; NULL: none here */
    size_t sum_count;
    void (*end)(const hierarchical *h, const collective *c, const struct chunk *k);
    void *work; /* ACROSS under way */
} chunk;

static unsigned char *bytes_at(const void *data, const collective *c, size_t elements)
{
    return (unsigned char *)data + elements * dtype_size(c->type);
}

static collective step(const collective *c, collective_kind kind, const void *in, void *out,
                       size_t count)
{
    return (collective){.kind = kind,
                        .op = c->op == REDUCE_AVG ? REDUCE_SUM : c->op,
                        .type = c->type,
                        .in = in,
                        .out = out,
                        .count = count,
                        .prescale = 1,
                        .seq = c->seq,
                        .timeout_ms = c->timeout_ms,
                        .label = c->label};
}

static const rank_place *place_of(const hierarchical *h, int rank)
{
    return &h->places[rank];
}

/* Which column carries what comes from or goes to a root. */
static int column_of(const hierarchical *h, int root)
{
    int column = place_of(h, root)->local_rank;
    return column < h->columns ? column : 0;
}

/* Do all columns share an all_reduce? */
static bool is_shared(const hierarchical *h, const collective *c)
{
    return h->even && h->columns > 1 && c->count * dtype_size(c->type) >= COLUMNS_FROM_BYTES;
}

static void copy_to_out(const hierarchical *h, const collective *c, const chunk *k)
{
    (void)h;
    memcpy(bytes_at(c->out, c, k->at), k->scratch, k->count * dtype_size(c->type));
}

/* Rows of equal size; if the elements do not divide, in the scratch memory. */
static void plan_shared(const hierarchical *h, const collective *c, chunk *k)
{
    size_t columns = (size_t)h->columns, row = (k->count + columns - 1) / columns;
    const void *in = bytes_at(c->in, c, k->at);
    void *out = bytes_at(c->out, c, k->at);
    if (row * columns > k->count) {
        memcpy(k->scratch, in, k->count * dtype_size(c->type));
        in = out = k->scratch;
        k->end = copy_to_out;
    }
    void *own = bytes_at(out, c, row * (size_t)h->host.rank);
    k->steps[INSIDE] = step(c, COLLECTIVE_REDUCE_SCATTER, in, own, row);
    k->steps[ACROSS] = step(c, COLLECTIVE_ALL_REDUCE, own, own, row);
    k->steps[BACK] = step(c, COLLECTIVE_ALL_GATHER, own, out, row);
    k->sum = own;
    k->sum_count = row;
}

static void plan_all_reduce(const hierarchical *h, const collective *c, chunk *k)
{
    void *out = bytes_at(c->out, c, k->at);
    if (is_shared(h, c)) {
        plan_shared(h, c, k);
        return;
    }
    k->steps[INSIDE] = step(c, COLLECTIVE_REDUCE, bytes_at(c->in, c, k->at), out, k->count);
    if (h->host.rank == 0) {
        k->steps[ACROSS] = step(c, COLLECTIVE_ALL_REDUCE, out, out, k->count);
        k->sum = out;
        k->sum_count = k->count;
    }
    k->steps[BACK] = step(c, COLLECTIVE_BROADCAST, out, out, k->count);
}

static void plan_broadcast(const hierarchical *h, const collective *c, chunk *k)
{
    const rank_place *root = place_of(h, c->root);
    int column = column_of(h, c->root);
    void *data = bytes_at(c->out, c, k->at);
    bool at_home = root->host == place_of(h, h->rank)->host;
    collective inside = step(c, COLLECTIVE_BROADCAST, data, data, k->count);
    inside.root = at_home ? root->local_rank : column;
    k->steps[at_home ? INSIDE : BACK] = inside;
    if (h->host.rank == column) {
        k->steps[ACROSS] = step(c, COLLECTIVE_BROADCAST, data, data, k->count);
        k->steps[ACROSS].root = root->host;
    }
}

static void plan_reduce(const hierarchical *h, const collective *c, chunk *k)
{
    const rank_place *root = place_of(h, c->root);
    int column = column_of(h, c->root);
    bool at_home = root->host == place_of(h, h->rank)->host;
    bool has_sum = column == root->local_rank && h->rank == c->root;
    void *sum = has_sum ? bytes_at(c->out, c, k->at) : k->scratch;
    k->steps[INSIDE] = step(c, COLLECTIVE_REDUCE, bytes_at(c->in, c, k->at), sum, k->count);
    k->steps[INSIDE].root = column;
    if (h->host.rank == column) {
        k->steps[ACROSS] = step(c, COLLECTIVE_REDUCE, sum, sum, k->count);
        k->steps[ACROSS].root = root->host;
        k->sum = at_home ? sum : NULL;
        k->sum_count = k->count;
    }
    if (at_home && column != root->local_rank) {
        k->steps[BACK] = step(c, COLLECTIVE_BROADCAST, k->scratch, k->scratch, k->count);
        k->steps[BACK].root = column;
        if (h->rank == c->root)
            k->end = copy_to_out;
    }
}

static void plan_barrier(const hierarchical *h, const collective *c, chunk *k)
{
    k->steps[INSIDE] = k->steps[BACK] = step(c, COLLECTIVE_BARRIER, NULL, NULL, 0);
    if (h->host.rank == 0)
        k->steps[ACROSS] = k->steps[INSIDE];
}

/* Where in the scratch memory a rank's part of its row is: by local ranks, then by hosts. */
static unsigned char *place_in_scratch(const hierarchical *h, const collective *c, const chunk *k,
                                       int rank)
{
    const rank_place *place = place_of(h, rank);
    return bytes_at(k->scratch, c, (size_t)(place->local_rank * h->hosts + place->host) * k->count);
}

static void unpack_rows(const hierarchical *h, const collective *c, const chunk *k)
{
    for (int rank = 0; rank < h->world_size; rank++)
        memcpy(bytes_at(c->out, c, (size_t)rank * c->count + k->at),
               place_in_scratch(h, c, k, rank), k->count * dtype_size(c->type));
}

static void plan_all_gather(const hierarchical *h, const collective *c, chunk *k)
{
    size_t row = (size_t)h->hosts * k->count;
    void *own = bytes_at(k->scratch, c, row * (size_t)h->host.rank);
    k->steps[ACROSS] = step(c, COLLECTIVE_ALL_GATHER, bytes_at(c->in, c, k->at), own, k->count);
    k->steps[BACK] = step(c, COLLECTIVE_ALL_GATHER, own, k->scratch, row);
    k->end = unpack_rows;
}

static void plan_reduce_scatter(const hierarchical *h, const collective *c, chunk *k)
{
    size_t row = (size_t)h->hosts * k->count;
    void *own = bytes_at(k->scratch, c, row * (size_t)h->host.rank);
    void *out = bytes_at(c->out, c, k->at);
    for (int rank = 0; rank < h->world_size; rank++)
        memcpy(place_in_scratch(h, c, k, rank), bytes_at(c->in, c, (size_t)rank * c->count + k->at),
               k->count * dtype_size(c->type));
    k->steps[INSIDE] = step(c, COLLECTIVE_REDUCE_SCATTER, k->scratch, own, row);
    k->steps[ACROSS] = step(c, COLLECTIVE_REDUCE_SCATTER, own, out, k->count);
    k->sum = out;
    k->sum_count = k->count;
}

typedef void plan_fn(const hierarchical *h, const collective *c, chunk *k);

static plan_fn *plan_of(collective_kind kind)
{
    static plan_fn *const plans[COLLECTIVE_KIND_COUNT] = {
        [COLLECTIVE_ALL_REDUCE] = plan_all_reduce,
        [COLLECTIVE_BROADCAST] = plan_broadcast,
        [COLLECTIVE_REDUCE] = plan_reduce,
        [COLLECTIVE_BARRIER] = plan_barrier,
        [COLLECTIVE_ALL_GATHER] = plan_all_gather,
        [COLLECTIVE_REDUCE_SCATTER] = plan_reduce_scatter,
    };
    return plans[kind];
}

/* Whether it passes through the levels; else all ranks do it in `world`. */
static bool hierarchical_has_levels(const hierarchical *h, const collective *c)
{
    bool in_rows = c->kind == COLLECTIVE_ALL_GATHER || c->kind == COLLECTIVE_REDUCE_SCATTER;
    return plan_of(c->kind) != NULL && (h->even || !in_rows);
}

/* Elements of the next chunk. */
static size_t cut(const hierarchical *h, const collective *c, size_t at)
{
    size_t most = HIERARCHICAL_CHUNK_BYTES / dtype_size(c->type);
    if (c->kind == COLLECTIVE_ALL_GATHER || c->kind == COLLECTIVE_REDUCE_SCATTER) {
        most /= (size_t)h->world_size;
    } else { /* rows of whole cache lines */
        size_t lines = LINE_BYTES / dtype_size(c->type) * (size_t)h->columns;
        most = most / lines * lines;
    }
    if (most == 0)
        most = 1;
    return c->count - at < most ? c->count - at : most;
}

/* Steps that follow on others wait a little longer: so the rank that is next to the cause is the
 * first to say so. */
static int64_t deadline_of(int number, int64_t deadline_ns)
{
    return deadline_ns + number * (int64_t)STEP_GRACE_MS * 1000000;
}

static status do_inside(hierarchical *h, const chunk *k, int number, int64_t deadline_ns)
{
    void *w = NULL;
    if (k->steps[number].kind == COLLECTIVE_KIND_COUNT)
        return STATUS_OK;
    TRY(level_launch(&h->host, &k->steps[number], &w));
    return level_wait(&h->host, w, deadline_of(number, deadline_ns));
}

static status start(hierarchical *h, const collective *c, chunk *k, int64_t deadline_ns)
{
    for (int i = 0; i < STEPS; i++)
        k->steps[i].kind = COLLECTIVE_KIND_COUNT;
    plan_of(c->kind)(h, c, k);
    collective *first =
        k->steps[INSIDE].kind != COLLECTIVE_KIND_COUNT ? &k->steps[INSIDE] : &k->steps[ACROSS];
    first->prescale = c->prescale;
    TRY(do_inside(h, k, INSIDE, deadline_ns));
    if (k->steps[ACROSS].kind == COLLECTIVE_KIND_COUNT)
        return STATUS_OK;
    return level_launch(&h->across, &k->steps[ACROSS], &k->work);
}

static status finish(hierarchical *h, const collective *c, chunk *k, int64_t deadline_ns)
{
    TRY(level_wait(&h->across, k->work, deadline_of(ACROSS, deadline_ns)));
    if (c->op == REDUCE_AVG && k->sum != NULL)
        reduce_divide(c->type, k->sum, k->sum_count, h->world_size);
    TRY(do_inside(h, k, BACK, deadline_ns));
    if (k->end != NULL)
        k->end(h, c, k);
    return STATUS_OK;
}

/* Does it, in the caller's thread. */
static status hierarchical_run(hierarchical *h, const collective *c, int64_t deadline_ns)
{
    chunk chunks[HIERARCHICAL_AHEAD];
    size_t begun = 0, ended = 0, at = 0;
    bool is_more = true;
    while (is_more || ended < begun) {
        if (!is_more || begun - ended == HIERARCHICAL_AHEAD) {
            TRY(finish(h, c, &chunks[ended % HIERARCHICAL_AHEAD], deadline_ns));
            ended++;
            continue;
        }
        size_t place = begun % HIERARCHICAL_AHEAD;
        chunk *k = &chunks[place];
        *k = (chunk){
            .at = at, .count = cut(h, c, at), .scratch = h->scratch + place * h->scratch_bytes};
        begun++;
        at += k->count;
        is_more = at < c->count;
        TRY(start(h, c, k, deadline_ns));
    }
    return STATUS_OK;
}

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
    void *inner; /* the work of the group of all ranks; NULL: it passes through the levels */
} hierarchical_work;

typedef struct backend {
    hierarchical h;
    pthread_mutex_t lock; /* guards all below: launches may come from another thread than waits */
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
