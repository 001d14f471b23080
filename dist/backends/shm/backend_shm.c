/* Collectives through shared memory, for the ranks of one host.
 *
 * A launch announces the collective: what it is, and where its data lies if that is in this rank's
 * heap. An all_reduce out of place is copied there first. All else happens in wait():
 *
 *   1. Wait until every rank has announced it, and check that all announced the same.
 *
 *   2. Move the data. A few numbers fit into the note that announces them: every rank takes the
 *      result from all ranks' notes, and has no step 3. Else:
 *
 *                    in the ranks' heaps                    in other memory
 *      all_reduce    The elements are cut into one part     The same, chunk by chunk through the
 *                    per rank. This rank reduces its part   slots. A chunk begins when all ranks
 *                    over all ranks' buffers, in rank       have `staged` theirs.
 *                    order, and writes the result into
 *                    every rank's buffer. Nobody else
 *                    touches that part: one pass does it,
 *                    without copies.
 *      broadcast     All copy from the root's heap.         From the root's slot, chunk by chunk.
 *      reduce        The root alone adds up, from all       From their slots, chunk by chunk.
 *                    others' heaps.
 *
 *   3. Publish `done`, and wait until all ranks are done with the round.
 *
 * Step 3 ends every other collective on every rank. So a buffer is its owner's again when wait()
 * returns, and a rank that returns knows that all others have moved all their counters: it may
 * leave without disturbing those that still look at them.
 *
 * A rank announces at most SHM_AHEAD collectives ahead, so that no note is overwritten before all
 * ranks have read it; launches beyond that are announced as waits make room.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/spares.h"
#include "dist/backends/shm/shm_sync.h"
#include "dist/collective/collective.h"
#include "dist/collective/process_group_ops.h"
#include "dist/collective/reduce.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HEAP_ALIGN = 64 };

typedef struct shm_work {
    struct shm_work *next;
    collective what;
    uint32_t index; /* counts this group's announced collectives, from 1 */
} shm_work;

typedef struct shm_group {
    shm_sync sync;
    uint32_t round;
    size_t heap_used;
    uint64_t *offsets; /* (world_size): where the ranks' data lies, in the collective under way */
    void **buffers;    /* (world_size) */
    void **parts;      /* (world_size) */
    const void **ins;  /* (world_size) */
    uint64_t (*small)[SHM_NOTE_WORDS]; /* (world_size): the ranks' data, from their notes */

    pthread_mutex_t lock; /* of the queue: launches may come from another thread than waits */
    shm_work *first, *last;
    spares works;
    shm_work *next_announced; /* the first that is not announced; NULL: all are */
    uint32_t launched, announced, finished;
} shm_group;

static shm_rank *rank_of(const shm_group *g, int rank)
{
    return &g->sync.region.control->ranks[rank];
}

static shm_rank *self_of(const shm_group *g)
{
    return rank_of(g, g->sync.region.rank);
}

static status end_round(shm_group *g, int64_t deadline_ns)
{
    shm_sync_arrive(&g->sync, SHM_DONE, g->round);
    return shm_sync_await_all(&g->sync, SHM_DONE, g->round, deadline_ns);
}

static status meet_staged(shm_group *g, int64_t deadline_ns)
{
    shm_sync_arrive(&g->sync, SHM_STAGED, g->round);
    return shm_sync_await_all(&g->sync, SHM_STAGED, g->round, deadline_ns);
}

static uint64_t pack(const collective *c)
{
    uint32_t prescale;
    memcpy(&prescale, &c->prescale, sizeof prescale);
    return (uint64_t)prescale << 32 | (uint64_t)c->root << 12 | (uint64_t)c->type << 8 |
           (uint64_t)c->op << 4 | (uint64_t)c->kind;
}

/* Does the data lie in the notes? All ranks say the same. */
static bool is_small(const collective *c)
{
    return c->count <= SHM_NOTE_WORDS * sizeof(uint64_t) / dtype_size(c->type);
}

/* Every rank must have announced the same; sets g->offsets. */
static status compare_notes(shm_group *g, const shm_work *w)
{
    const collective *c = &w->what;
    size_t size_bytes = c->count * dtype_size(c->type);
    for (int rank = 0; rank < g->sync.region.world_size; rank++) {
        shm_note *note = &rank_of(g, rank)->notes[w->index % SHM_NOTES];
        uint64_t seq = atomic_load_explicit(&note->seq, memory_order_relaxed);
        uint64_t what = atomic_load_explicit(&note->what, memory_order_relaxed);
        uint64_t count = atomic_load_explicit(&note->count, memory_order_relaxed);
        uint64_t offset = atomic_load_explicit(&note->offset, memory_order_relaxed);
        if (seq != c->seq || what != pack(c) || count != c->count)
            return FAIL(STATUS_INVALID,
                        "rank %d issued another collective: %s #%" PRIu64 " of %" PRIu64
                        " elements, but this rank issued %s #%" PRIu64
                        " of %zu, or op, type, root or prescale differ",
                        rank, collective_kind_name((collective_kind)(what & 15)), seq, count,
                        collective_kind_name(c->kind), c->seq, c->count);
        if (offset != SHM_NO_OFFSET &&
            (offset > g->sync.region.heap_bytes || size_bytes > g->sync.region.heap_bytes - offset))
            return FAIL(STATUS_PEER, "rank %d points outside its shared memory", rank);
        g->offsets[rank] = offset;
    }
    return STATUS_OK;
}

/* This rank's part of g->buffers, each `count` elements. Parts are cut at whole cache lines. */
static status reduce_round(shm_group *g, const collective *c, size_t count, int64_t deadline_ns)
{
    size_t size = dtype_size(c->type), per_line = SHM_LINE_BYTES / size;
    size_t n = (size_t)g->sync.region.world_size, rank = (size_t)g->sync.region.rank;
    size_t lines = (count + per_line - 1) / per_line;
    size_t begin = lines * rank / n * per_line, end = lines * (rank + 1) / n * per_line;
    if (end > count)
        end = count;
    for (size_t i = 0; i < n; i++)
        g->parts[i] = (unsigned char *)g->buffers[i] + begin * size;
    if (begin < end)
        reduce_buffers(c->type, c->op, c->prescale, g->parts, (int)n, end - begin);
    return end_round(g, deadline_ns);
}

static status all_reduce(shm_group *g, const collective *c, int64_t deadline_ns)
{
    const shm_region *region = &g->sync.region;
    bool in_heaps = true;
    for (int rank = 0; rank < region->world_size; rank++)
        in_heaps = in_heaps && g->offsets[rank] != SHM_NO_OFFSET;
    for (int rank = 0; rank < region->world_size; rank++)
        g->buffers[rank] = in_heaps ? shm_region_heap(region, rank) + g->offsets[rank]
                                    : shm_region_slot(region, rank);
    if (in_heaps) {
        g->round++;
        return reduce_round(g, c, c->count, deadline_ns);
    }
    size_t size = dtype_size(c->type), most = SHM_SLOT_BYTES / size, some;
    void *slot = g->buffers[region->rank];
    for (size_t at = 0; at < c->count; at += some) {
        some = c->count - at < most ? c->count - at : most;
        g->round++;
        memcpy(slot, (const unsigned char *)c->in + at * size, some * size);
        TRY(meet_staged(g, deadline_ns));
        TRY(reduce_round(g, c, some, deadline_ns));
        memcpy((unsigned char *)c->out + at * size, slot, some * size);
    }
    return STATUS_OK;
}

static status broadcast(shm_group *g, const collective *c, int64_t deadline_ns)
{
    const shm_region *region = &g->sync.region;
    bool is_root = c->root == region->rank;
    size_t size_bytes = c->count * dtype_size(c->type), some;
    if (g->offsets[c->root] != SHM_NO_OFFSET) {
        g->round++;
        if (!is_root)
            memcpy(c->out, shm_region_heap(region, c->root) + g->offsets[c->root], size_bytes);
        return end_round(g, deadline_ns);
    }
    unsigned char *slot = shm_region_slot(region, c->root);
    for (size_t at = 0; at < size_bytes; at += some) {
        some = size_bytes - at < SHM_SLOT_BYTES ? size_bytes - at : SHM_SLOT_BYTES;
        g->round++;
        if (is_root)
            memcpy(slot, (const unsigned char *)c->in + at, some);
        TRY(meet_staged(g, deadline_ns));
        if (!is_root)
            memcpy((unsigned char *)c->out + at, slot, some);
        TRY(end_round(g, deadline_ns));
    }
    return STATUS_OK;
}

/* The root's sum over this rank's own data and what g->ins says of the others'. */
static void add_up(shm_group *g, const collective *c, size_t at, size_t count)
{
    size_t size = dtype_size(c->type);
    void *out = (unsigned char *)c->out + at * size;
    g->ins[c->root] = (const unsigned char *)c->in + at * size;
    reduce_parts parts = {g->ins, g->sync.region.world_size, &out, 1};
    reduce_into(c->type, c->op, c->prescale, &parts, count);
}

static status reduce_in_heaps(shm_group *g, const collective *c, int64_t deadline_ns)
{
    const shm_region *region = &g->sync.region;
    for (int rank = 0; rank < region->world_size; rank++)
        if (rank != c->root)
            g->ins[rank] = shm_region_heap(region, rank) + g->offsets[rank];
    g->round++;
    if (c->root == region->rank)
        add_up(g, c, 0, c->count);
    return end_round(g, deadline_ns);
}

static status reduce(shm_group *g, const collective *c, int64_t deadline_ns)
{
    const shm_region *region = &g->sync.region;
    bool is_root = c->root == region->rank, in_heaps = true;
    for (int rank = 0; rank < region->world_size; rank++)
        in_heaps = in_heaps && (rank == c->root || g->offsets[rank] != SHM_NO_OFFSET);
    if (in_heaps)
        return reduce_in_heaps(g, c, deadline_ns);
    for (int rank = 0; rank < region->world_size; rank++)
        g->ins[rank] = shm_region_slot(region, rank);
    size_t size = dtype_size(c->type), most = SHM_SLOT_BYTES / size, some;
    for (size_t at = 0; at < c->count; at += some) {
        some = c->count - at < most ? c->count - at : most;
        g->round++;
        if (!is_root)
            memcpy(shm_region_slot(region, region->rank), (const unsigned char *)c->in + at * size,
                   some * size);
        TRY(meet_staged(g, deadline_ns));
        if (is_root)
            add_up(g, c, at, some);
        TRY(end_round(g, deadline_ns));
    }
    return STATUS_OK;
}

/* The result from the ranks' notes, which nobody overwrites before this rank is done. */
static void finish_small(shm_group *g, const shm_work *w)
{
    const collective *c = &w->what;
    int n = g->sync.region.world_size;
    bool is_root = c->root == g->sync.region.rank;
    for (int rank = 0; rank < n; rank++) {
        shm_note *note = &rank_of(g, rank)->notes[w->index % SHM_NOTES];
        for (int i = 0; i < SHM_NOTE_WORDS; i++)
            g->small[rank][i] = atomic_load_explicit(&note->data[i], memory_order_relaxed);
        g->ins[rank] = g->small[rank];
    }
    reduce_parts parts = {g->ins, n, (void *const[]){c->out}, 1};
    if (c->kind == COLLECTIVE_ALL_REDUCE || (c->kind == COLLECTIVE_REDUCE && is_root))
        reduce_into(c->type, c->op, c->prescale, &parts, c->count);
    else if (c->kind == COLLECTIVE_BROADCAST && !is_root && c->count > 0)
        memcpy(c->out, g->ins[c->root], c->count * dtype_size(c->type));
}

static status complete(shm_group *g, const shm_work *w, int64_t deadline_ns)
{
    TRY(shm_sync_await_all(&g->sync, SHM_ANNOUNCED, w->index, deadline_ns));
    TRY(compare_notes(g, w));
    if (is_small(&w->what)) {
        finish_small(g, w);
        return STATUS_OK;
    }
    switch (w->what.kind) {
    case COLLECTIVE_ALL_REDUCE:
        return all_reduce(g, &w->what, deadline_ns);
    case COLLECTIVE_BROADCAST:
        return broadcast(g, &w->what, deadline_ns);
    case COLLECTIVE_REDUCE:
        return reduce(g, &w->what, deadline_ns);
    default:
        return FAIL(STATUS_INVALID, "backend shm has no %s", collective_kind_name(w->what.kind));
    }
}

/* Where peers find this rank's data once the collective is announced. They write into the buffers
 * of an all_reduce, so `in` is copied to `out` first, if that is theirs to write to. */
static uint64_t expose(const shm_region *region, const collective *c)
{
    size_t size_bytes = c->count * dtype_size(c->type);
    bool reduces = c->kind == COLLECTIVE_ALL_REDUCE;
    if (is_small(c) || (c->kind == COLLECTIVE_BROADCAST && c->in != c->out))
        return SHM_NO_OFFSET;
    uint64_t offset = shm_region_offset(region, reduces ? c->out : c->in, size_bytes);
    if (reduces && c->in != c->out && offset != SHM_NO_OFFSET)
        memcpy(c->out, c->in, size_bytes);
    return offset;
}

static void write_small(const collective *c, int rank, shm_note *note)
{
    uint64_t words[SHM_NOTE_WORDS] = {0};
    bool has_data = c->count > 0 && (c->kind != COLLECTIVE_BROADCAST || c->root == rank);
    if (has_data)
        memcpy(words, c->in, c->count * dtype_size(c->type));
    for (int i = 0; i < SHM_NOTE_WORDS; i++)
        atomic_store_explicit(&note->data[i], words[i], memory_order_relaxed);
}

/* The lock is held. Announces what has been launched, as far as there is room for notes. */
static void announce(shm_group *g)
{
    while (g->next_announced != NULL && g->announced - g->finished < SHM_AHEAD) {
        shm_work *w = g->next_announced;
        const collective *c = &w->what;
        shm_note *note = &self_of(g)->notes[w->index % SHM_NOTES];
        uint64_t offset = expose(&g->sync.region, c);
        atomic_store_explicit(&note->seq, c->seq, memory_order_relaxed);
        atomic_store_explicit(&note->what, pack(c), memory_order_relaxed);
        atomic_store_explicit(&note->count, c->count, memory_order_relaxed);
        atomic_store_explicit(&note->offset, offset, memory_order_relaxed);
        if (is_small(c))
            write_small(c, g->sync.region.rank, note);
        shm_sync_arrive(&g->sync, SHM_ANNOUNCED, w->index);
        g->announced = w->index;
        g->next_announced = w->next;
    }
}

static status shm_launch(void *self, const collective *c, device_stream *stream, void **out_work)
{
    (void)stream;
    shm_group *g = self;
    if (c->kind > COLLECTIVE_REDUCE)
        return FAIL(STATUS_INVALID, "backend shm has no %s", collective_kind_name(c->kind));
    pthread_mutex_lock(&g->lock);
    shm_work *w = spares_take(&g->works, sizeof *w);
    if (w == NULL) {
        pthread_mutex_unlock(&g->lock);
        return FAIL(STATUS_NO_MEMORY, "a work of %zu bytes", sizeof *w);
    }
    w->what = *c;
    w->index = ++g->launched;
    *(g->first == NULL ? &g->first : &g->last->next) = w;
    g->last = w;
    if (g->next_announced == NULL)
        g->next_announced = w;
    announce(g);
    pthread_mutex_unlock(&g->lock);
    *out_work = w;
    return STATUS_OK;
}

static status shm_wait(void *self, void *work_, int64_t deadline_ns, int64_t *done_ns)
{
    shm_group *g = self;
    shm_work *w = work_;
    status st = complete(g, w, deadline_ns);
    *done_ns = clock_now_ns();
    pthread_mutex_lock(&g->lock);
    ASSERT(g->first == w);
    g->first = w->next;
    g->finished = w->index;
    if (st == STATUS_OK)
        announce(g);
    spares_give(&g->works, w);
    pthread_mutex_unlock(&g->lock);
    return st;
}

static status shm_alloc(void *self, size_t size_bytes, void **out)
{
    shm_group *g = self;
    size_t left = g->sync.region.heap_bytes - g->heap_used;
    if (left < HEAP_ALIGN || size_bytes > left - HEAP_ALIGN)
        return FAIL(STATUS_NO_MEMORY, "%zu bytes of the shared heap: %zu are left", size_bytes,
                    left);
    unsigned char *memory = shm_region_heap(&g->sync.region, g->sync.region.rank) + g->heap_used;
    size_t rounded = (size_bytes + HEAP_ALIGN - 1) / HEAP_ALIGN * HEAP_ALIGN;
    g->heap_used += rounded;
#ifdef MADV_POPULATE_WRITE
    /* So that the first steps do not stop at every page. Only advice: older kernels refuse. */
    uintptr_t page = memory_page_bytes(), begin = (uintptr_t)memory / page * page;
    (void)madvise((void *)begin, (uintptr_t)memory + rounded - begin, MADV_POPULATE_WRITE);
#endif
    *out = memory;
    return STATUS_OK;
}

static void shm_destroy(void *self)
{
    shm_group *g = self;
    shm_sync_close(&g->sync);
    while (g->first != NULL) {
        shm_work *w = g->first;
        g->first = w->next;
        free(w);
    }
    spares_free(&g->works);
    pthread_mutex_destroy(&g->lock);
    free(g->offsets);
    free(g->buffers);
    free(g->parts);
    free(g->ins);
    free(g->small);
    free(g);
}

static status shm_create(const group_setup *setup, void **self)
{
    int64_t deadline_ns = clock_deadline_ns(process_group_patience_ms(setup->options));
    size_t n = (size_t)setup->options->world_size;
    shm_region region = {0};
    shm_group *g = calloc(1, sizeof *g);
    if (g == NULL)
        return FAIL(STATUS_NO_MEMORY, "a shm group");
    pthread_mutex_init(&g->lock, NULL);
    g->offsets = calloc(n, sizeof *g->offsets);
    g->buffers = calloc(n, sizeof *g->buffers);
    g->parts = calloc(n, sizeof *g->parts);
    g->ins = calloc(n, sizeof *g->ins);
    g->small = calloc(n, sizeof *g->small);
    status st = STATUS_OK;
    if (g->offsets == NULL || g->buffers == NULL || g->parts == NULL || g->ins == NULL ||
        g->small == NULL)
        st = FAIL(STATUS_NO_MEMORY, "a shm group of %zu ranks", n);
    if (st == STATUS_OK)
        st = shm_region_create(setup, deadline_ns, &region);
    if (st != STATUS_OK)
        peers_decline(setup);
    else
        st = shm_sync_create(&g->sync, &region, setup, deadline_ns);
    if (st != STATUS_OK) {
        shm_destroy(g);
        return st;
    }
    *self = g;
    return STATUS_OK;
}

const process_group_ops shm_ops = {
    .name = "shm",
    .device_memory = false,
    .works_in_wait = true,
    .create = shm_create,
    .launch = shm_launch,
    .wait = shm_wait,
    .alloc = shm_alloc,
    .destroy = shm_destroy,
    .traffic = collective_star_traffic,
};
