/* Collectives and messages through shared memory, for the ranks of one host.
 *
 *   send, recv    shm_messages.c: streams of bytes from rank to rank
 *   all others    shm_exchange.c: takers read what givers show
 *
 * A launch of a collective announces it in a note: what it is, and where its data lies if that is
 * in this rank's heap; a few numbers fit into the note itself. All else happens in wait(): it
 * waits until every rank has announced the collective, checks that all announced the same, and
 * moves the data.
 *
 * A rank announces at most SHM_AHEAD collectives ahead, so that no note is overwritten before all
 * ranks have read it; launches beyond that are announced as waits make room.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "dist/backends/shm/shm_exchange.h"
#include "dist/backends/shm/shm_messages.h"
#include "dist/backends/shm/shm_note.h"
#include "dist/backends/shm/shm_sync.h"
#include "dist/collective/process_group_ops.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { HEAP_ALIGN = 64 };

typedef struct shm_work {
    struct shm_work *next;
    collective what;
    atomic_bool ended;   /* its wait(): the next launch takes it off the queue */
    uint32_t index;      /* of a collective: counts this group's, from 1 */
    shm_message message; /* of a send or recv */
} shm_work;

typedef struct shm_group {
    shm_sync sync;
    shm_exchange exchange;
    shm_messages messages;
    size_t heap_used;

    pthread_mutex_t lock; /* of the queue: launches may come from another thread than waits */
    shm_work *first, *last;
    spares works;
    shm_work *next_announced; /* the first that may have to be announced; NULL: none */
    _Atomic uint32_t launched, announced, finished; /* collectives */
} shm_group;

static bool is_message(const shm_work *w)
{
    return collective_is_send_or_recv(w->what.kind);
}

/* The lock is held. Announces what has been launched, as far as there is room for notes. One that
 * blocks wakes nobody yet: its wait follows at once, and looks for the others first. So their notes
 * and this one are on their way at the same time. */
static void announce(shm_group *g)
{
    const shm_region *region = &g->sync.region;
    const shm_rank *self = &region->control->ranks[region->rank];
    for (shm_work *w = g->next_announced; w != NULL; g->next_announced = w = w->next) {
        if (is_message(w))
            continue;
        if (g->announced - atomic_load(&g->finished) >= SHM_AHEAD)
            return;
        shm_note_write(region, &w->what, w->index);
        shm_sync_show(&g->sync, SHM_ANNOUNCED, w->index);
        if (!w->what.blocks)
            shm_sync_wake(&g->sync, SHM_ANNOUNCED, w->index);
        atomic_store_explicit(&g->announced, w->index, memory_order_relaxed);
        __builtin_prefetch(&self->notes[(w->index + 1) % SHM_NOTES], 1);
    }
}

/* The lock is held. */
static void append(shm_group *g, shm_work *w)
{
    *(g->first == NULL ? &g->first : &g->last->next) = w;
    g->last = w;
    if (g->next_announced == NULL)
        g->next_announced = w;
}

/* The lock is held. Waits end in the order of the queue, and take no lock for that. */
static void drop_ended(shm_group *g)
{
    for (shm_work *w = g->first; w != NULL && atomic_load_explicit(&w->ended, memory_order_acquire);
         w = g->first) {
        if (g->next_announced == w)
            g->next_announced = w->next;
        g->first = w->next;
        spares_give(&g->works, w);
    }
}

static status shm_launch(void *self, const collective *c, device_stream *stream, void **out_work)
{
    (void)stream;
    shm_group *g = self;
    status st = STATUS_OK;
    pthread_mutex_lock(&g->lock);
    drop_ended(g);
    shm_work *w = spares_take(&g->works, sizeof *w);
    if (w == NULL)
        st = FAIL(STATUS_NO_MEMORY, "a work of %zu bytes", sizeof *w);
    else
        w->what = *c;
    if (w != NULL && is_message(w))
        st = shm_messages_launch(&g->messages, &w->what, &w->message);
    else if (w != NULL)
        w->index = ++g->launched;
    if (st == STATUS_OK) {
        append(g, w);
        announce(g);
        *out_work = w;
    } else if (w != NULL) {
        spares_give(&g->works, w);
    }
    pthread_mutex_unlock(&g->lock);
    return st;
}

/* Room for one more note. Either this thread sees that there is one to announce, or the launch of
 * that has seen the room: both sides store before they look. */
static void end_collective(shm_group *g, uint32_t index)
{
    atomic_store(&g->finished, index);
    if (atomic_load(&g->launched) == atomic_load(&g->announced))
        return;
    pthread_mutex_lock(&g->lock);
    announce(g);
    pthread_mutex_unlock(&g->lock);
}

static status run(shm_group *g, const shm_work *w, int64_t deadline_ns)
{
    if (w->what.blocks) {
        shm_sync_look(&g->sync, SHM_ANNOUNCED, w->index);
        shm_sync_wake(&g->sync, SHM_ANNOUNCED, w->index);
    }
    return shm_exchange_run(&g->exchange, &w->what, w->index, deadline_ns);
}

static status shm_wait(void *self, void *work_, int64_t deadline_ns, int64_t *done_ns)
{
    shm_group *g = self;
    shm_work *w = work_;
    status st = is_message(w) ? shm_messages_wait(&g->messages, &w->message, deadline_ns)
                              : run(g, w, deadline_ns);
    *done_ns = clock_now_ns();
    if (st != STATUS_OK) /* the group is broken, and a message may still be on a list */
        return st;
    if (!is_message(w))
        end_collective(g, w->index);
    atomic_store_explicit(&w->ended, true, memory_order_release);
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

static void shm_abort(void *self, const char *why)
{
    (void)why;
    shm_sync_abort(&((shm_group *)self)->sync);
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
    shm_exchange_free(&g->exchange);
    shm_messages_free(&g->messages);
    free(g);
}

static status shm_create(const group_setup *setup, void **self)
{
    int64_t deadline_ns = clock_deadline_ns(process_group_patience_ms(setup->options));
    int world_size = setup->options->world_size;
    shm_region region = {0};
    shm_group *g = calloc(1, sizeof *g);
    if (g == NULL)
        return FAIL(STATUS_NO_MEMORY, "a shm group");
    pthread_mutex_init(&g->lock, NULL);
    status st = shm_exchange_create(&g->sync, world_size, &g->exchange);
    if (st == STATUS_OK)
        st = shm_messages_create(&g->sync, world_size, &g->messages);
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
    g->sync.idle = shm_messages_move;
    g->sync.idle_ctx = &g->messages;
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
    .abort = shm_abort,
    .destroy = shm_destroy,
    .traffic = collective_star_traffic,
};
