/* Collectives and messages through shared memory, for the ranks of one host.
 *
 *   send, recv    shm_messages: streams of bytes from rank to rank
 *   all others    shm_exchange: takers read what givers show
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
#include "dist/backends/shm/shm_region.h"
#include "dist/collective/collective.h"
#include "dist/collective/process_group_ops.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct shm_exchange {
    shm_sync *sync; /* borrowed */
    uint32_t step;
    shm_offer *offers;  /* (world_size): what the ranks have announced of the one under way */
    const void **given; /* (world_size) */
    void **outs;        /* (world_size) */
} shm_exchange;

static void shm_exchange_free(shm_exchange *x); /* accepts all zero */

/* Every collective is one exchange: givers show what they have, takers read it (its table is in
 * dist/collective/collective.h). A giver's data lies in one of three places:
 *
 *   in its note      a few numbers, or in the note's annex up to SHM_ANNEX_BYTES: the takers have
 *                    them with the announcement. Nobody waits a second time.
 *   in its heap      takers read it there, as it lies.
 *   in its slots     all else: chunk by chunk, each in a step of its own, in two slots in turn.
 *                    While takers read one, the giver fills the other.
 *
 *                        step 1         step 2         step 3
 *        giver    slot 1 [fill]         wait, then     [fill]
 *                 slot 0         [fill]                wait, then  ...
 *        taker           wait   [read 1]       [read 2]      [read 3]
 *
 * Givers of one collective may differ in this. If none needs slots there is one step for all.
 *
 * all_reduce has two more ways:
 *
 *   parts     in and out of every rank lie in the heaps. The elements are cut into one part per
 *             rank. This rank reduces its part over all `in` and writes the result into every
 *             `out`. Nobody else touches that part: one pass, without copies, also in place.
 *   reduced   more than two ranks. Of each chunk, this rank reduces its part into its own slot;
 *             once all have `reduced` theirs, every rank copies all parts from there. So each
 *             element is added up once, and not by every rank.
 *
 * A step ends with `done`. Before a giver fills a slot again, all ranks are done with the step
 * that used it last. At the end every rank waits until all are done: then what it has shown is its
 * own again, and it knows that all others have moved all their counters. So it may leave without
 * disturbing those that still look at them.
 */

enum { BLOCK_BYTES = 8 << 10 };

static status shm_exchange_create(shm_sync *sync, int world_size, shm_exchange *out)
{
    size_t n = (size_t)world_size;
    *out = (shm_exchange){.sync = sync};
    out->offers = calloc(n, sizeof *out->offers);
    out->given = calloc(n, sizeof *out->given);
    out->outs = calloc(n, sizeof *out->outs);
    if (out->offers == NULL || out->given == NULL || out->outs == NULL) {
        shm_exchange_free(out);
        return FAIL(STATUS_NO_MEMORY, "an exchange of %d ranks", world_size);
    }
    return STATUS_OK;
}

static void shm_exchange_free(shm_exchange *x)
{
    free(x->offers);
    free(x->given);
    free(x->outs);
    *x = (shm_exchange){0};
}

enum { KEEP_UP_SHIFT = 20 }; /* every 2^20 steps */

static status finish_step(shm_exchange *x, int64_t deadline_ns)
{
    return shm_sync_await_all(x->sync, SHM_DONE, x->step, deadline_ns);
}

/* This rank's part: nobody else's. */
static status reduce_parts_in_heaps(shm_exchange *x, const collective *c, int64_t deadline_ns)
{
    const shm_region *region = &x->sync->region;
    exchange_part part = exchange_part_of(c, c->count, region->rank, region->world_size);
    size_t begin_bytes = part.begin * dtype_size(c->type);
    bool in_place = true;
    for (int rank = 0; rank < region->world_size; rank++) {
        unsigned char *heap = shm_region_heap(region, rank) + begin_bytes;
        x->given[rank] = heap + x->offers[rank].in;
        x->outs[rank] = heap + x->offers[rank].out;
        in_place = in_place && x->offers[rank].in == x->offers[rank].out;
    }
    reduce_parts parts = {x->given, region->world_size, x->outs, region->world_size};
    size_t count = part.end - part.begin;
    if (count > 0 && in_place)
        reduce_buffers(c->type, c->op, c->prescale, x->outs, region->world_size, count);
    else if (count > 0)
        reduce_into(c->type, c->op, c->prescale, &parts, count);
    shm_sync_arrive(x->sync, SHM_DONE, ++x->step);
    return finish_step(x, deadline_ns);
}

/* Takers read it where it lies: it is shown, and its owner does not overwrite it meanwhile. */
static bool is_read_in_heap(const shm_offer *offer)
{
    return offer->in != SHM_NO_OFFSET && offer->in != offer->out;
}

/* How a collective is cut into steps. */
typedef struct steps {
    const collective *c;
    size_t rows, row_bytes; /* as a giver's `in` is laid out */
    size_t most;            /* elements of a row in one step */
    uint32_t first, n;
    bool staged; /* a giver uses slots */
    bool reduced;
} steps;

static steps cut(const shm_exchange *x, const collective *c)
{
    const shm_region *region = &x->sync->region;
    size_t size = dtype_size(c->type), rows = (size_t)exchange_rows(c, region->world_size);
    steps r = {.c = c, .rows = rows, .row_bytes = c->count * size, .first = x->step + 1};
    r.reduced = c->kind == COLLECTIVE_ALL_REDUCE && region->world_size > 2;
    for (int rank = 0; rank < region->world_size; rank++)
        if (exchange_is_read(c, rank) && !is_read_in_heap(&x->offers[rank]))
            r.staged = true;
    r.most = r.staged || r.reduced ? SHM_SLOT_BYTES / (rows * size) : c->count;
    r.n = (uint32_t)((c->count + r.most - 1) / r.most);
    return r;
}

/* Elements of each row in step `k` of them. */
static size_t count_of(const steps *r, uint32_t k)
{
    size_t left = r->c->count - k * r->most;
    return left < r->most ? left : r->most;
}

/* Fills this rank's slot for step k, if it needs one. */
static status stage(shm_exchange *x, const steps *r, uint32_t k, int64_t deadline_ns)
{
    const shm_region *region = &x->sync->region;
    uint32_t step = r->first + k;
    size_t size = dtype_size(r->c->type), some_bytes = count_of(r, k) * size;
    if (!r->staged && !r->reduced)
        return STATUS_OK;
    TRY(shm_sync_await_all(x->sync, SHM_DONE, step - SHM_SLOTS, deadline_ns));
    if (exchange_is_read(r->c, region->rank) && !is_read_in_heap(&x->offers[region->rank])) {
        unsigned char *slot = shm_region_slot(region, region->rank, step);
        const unsigned char *in = (const unsigned char *)r->c->in + k * r->most * size;
        for (size_t row = 0; row < r->rows; row++)
            memory_stream(slot + row * some_bytes, in + row * r->row_bytes, some_bytes);
    }
    shm_sync_arrive(x->sync, SHM_STAGED, step);
    return STATUS_OK;
}

/* Sets x->given to what this rank takes in step k. */
static void find_given(shm_exchange *x, const steps *r, uint32_t k)
{
    const shm_region *region = &x->sync->region;
    size_t size = dtype_size(r->c->type), row = exchange_row(r->c, region->rank);
    size_t at_bytes = row * r->row_bytes + k * r->most * size;
    for (int rank = 0; rank < region->world_size; rank++) {
        if (!exchange_gives(r->c, rank))
            x->given[rank] = NULL;
        else if (rank == region->rank)
            x->given[rank] = (const unsigned char *)r->c->in + at_bytes;
        else if (is_read_in_heap(&x->offers[rank]))
            x->given[rank] = shm_region_heap(region, rank) + x->offers[rank].in + at_bytes;
        else
            x->given[rank] =
                shm_region_slot(region, rank, r->first + k) + row * count_of(r, k) * size;
    }
}

/* Reduces elements begin .. end - 1 of what x->given says, and streams them to `slot`. */
static void reduce_to_slot(shm_exchange *x, const collective *c, exchange_part part,
                           unsigned char *slot)
{
    _Alignas(SHM_LINE_BYTES) unsigned char block[BLOCK_BYTES];
    size_t size = dtype_size(c->type), most = BLOCK_BYTES / size, some;
    int world_size = x->sync->region.world_size;
    for (int rank = 0; rank < world_size; rank++)
        x->given[rank] = (const unsigned char *)x->given[rank] + part.begin * size;
    for (size_t at = part.begin; at < part.end; at += some) {
        some = part.end - at < most ? part.end - at : most;
        reduce_parts parts = {x->given, world_size, (void *const[]){block}, 1};
        reduce_into(c->type, c->op, c->prescale, &parts, some);
        memory_stream(slot + at * size, block, some * size);
        for (int rank = 0; rank < world_size; rank++)
            x->given[rank] = (const unsigned char *)x->given[rank] + some * size;
    }
}

/* Step k of an all_reduce: this rank's part into its slot, then all parts from their slots. */
static status take_reduced(shm_exchange *x, const steps *r, uint32_t k, int64_t deadline_ns)
{
    const shm_region *region = &x->sync->region;
    const collective *c = r->c;
    uint32_t step = r->first + k;
    size_t size = dtype_size(c->type), some = count_of(r, k);
    exchange_part own = exchange_part_of(c, some, region->rank, region->world_size);
    reduce_to_slot(x, c, own, shm_region_slot(region, region->rank, step));
    shm_sync_arrive(x->sync, SHM_REDUCED, step);
    TRY(shm_sync_await_all(x->sync, SHM_REDUCED, step, deadline_ns));
    unsigned char *out = (unsigned char *)c->out + k * r->most * size;
    for (int i = 0; i < region->world_size; i++) {
        int rank = (region->rank + i) % region->world_size;
        exchange_part part = exchange_part_of(c, some, rank, region->world_size);
        memcpy(out + part.begin * size, shm_region_slot(region, rank, step) + part.begin * size,
               (part.end - part.begin) * size);
    }
    return STATUS_OK;
}

static status do_step(shm_exchange *x, const steps *r, uint32_t k, int64_t deadline_ns)
{
    const shm_region *region = &x->sync->region;
    if (exchange_takes(r->c, region->rank)) {
        if (r->staged || r->reduced)
            TRY(shm_sync_await_all(x->sync, SHM_STAGED, r->first + k, deadline_ns));
        find_given(x, r, k);
        if (r->reduced)
            TRY(take_reduced(x, r, k, deadline_ns));
        else
            exchange_take(r->c, region->rank, region->world_size, x->given, k * r->most,
                          count_of(r, k));
    }
    shm_sync_arrive(x->sync, SHM_DONE, r->first + k);
    return STATUS_OK;
}

static status do_steps(shm_exchange *x, const collective *c, int64_t deadline_ns)
{
    steps r = cut(x, c);
    TRY(stage(x, &r, 0, deadline_ns));
    for (uint32_t k = 0; k < r.n; k++) {
        if (k + 1 < r.n)
            TRY(stage(x, &r, k + 1, deadline_ns));
        TRY(do_step(x, &r, k, deadline_ns));
    }
    x->step += r.n;
    return finish_step(x, deadline_ns);
}

/* From the ranks' notes or annexes, which nobody overwrites before this rank has ended the
 * collective. */
static void take_from_notes(shm_exchange *x, const collective *c, uint32_t index)
{
    const shm_region *region = &x->sync->region;
    size_t at_bytes = exchange_row(c, region->rank) * c->count * dtype_size(c->type);
    shm_note_find_data(region, c, index, x->given);
    if (exchange_gives(c, region->rank))
        x->given[region->rank] = c->in;
    for (int rank = 0; rank < region->world_size; rank++)
        x->given[rank] = (const unsigned char *)x->given[rank] + at_bytes;
    if (exchange_takes(c, region->rank))
        exchange_take(c, region->rank, region->world_size, x->given, 0, c->count);
}

/* Steps are compared modulo 2^32, so that a counter that many collectives do not use must not
 * stay far behind. */
static void keep_up(shm_exchange *x)
{
    shm_sync_arrive(x->sync, SHM_STAGED, x->step);
    shm_sync_arrive(x->sync, SHM_REDUCED, x->step);
}

/* Does what all ranks have announced as collective `index` (shm_note_write), and returns when c->in
 * and c->out are this rank's again. STATUS_INVALID if ranks have announced different ones; else the
 * failures of shm_sync_await_all. */
static status shm_exchange_run(shm_exchange *x, const collective *c, uint32_t index,
                               int64_t deadline_ns)
{
    const shm_region *region = &x->sync->region;
    TRY(shm_sync_await_all(x->sync, SHM_ANNOUNCED, index, deadline_ns));
    TRY(shm_note_check_all(region, c, index));
    if (shm_note_fits_annex(c, region->world_size)) {
        take_from_notes(x, c, index);
        return STATUS_OK;
    }
    TRY(shm_note_read_offers(region, c, index, x->offers));
    bool in_heaps = c->kind == COLLECTIVE_ALL_REDUCE;
    for (int rank = 0; rank < region->world_size; rank++)
        in_heaps =
            in_heaps && x->offers[rank].in != SHM_NO_OFFSET && x->offers[rank].out != SHM_NO_OFFSET;
    uint32_t before = x->step;
    TRY(in_heaps ? reduce_parts_in_heaps(x, c, deadline_ns) : do_steps(x, c, deadline_ns));
    if ((before ^ x->step) >> KEEP_UP_SHIFT != 0)
        keep_up(x);
    return STATUS_OK;
}

/* Sends and receives between two ranks. */

/* A send or recv under way. */
typedef struct shm_message {
    struct shm_message *next; /* with the same peer, in the order of launch */
    const collective *what;
    size_t moved; /* bytes in the channel, of a send */
    _Atomic bool is_done;
} shm_message;

struct shm_sends;
struct shm_receives;

typedef struct shm_messages {
    shm_sync *sync; /* borrowed; its `idle` is to be shm_messages_move */
    int world_size;
    pthread_mutex_t lock; /* guards all below: launches may come from another thread than waits */
    struct shm_sends *to; /* (world_size) */
    struct shm_receives *from; /* (world_size) */
    int under_way;
} shm_messages;

static void shm_messages_free(shm_messages *m); /* accepts all zero */

/* From each rank to each other one there is a channel: a stream of bytes through a ring in shared
 * memory. The sender alone moves `written` on, the receiver alone `read`.
 *
 *   channel   | head 17 | bytes of 17 ............. | head 18 | bytes of 18 .. (free) ..........|
 *                       ^ read                                               ^ written
 *
 * A send writes its head (tag, type, count) and its bytes, piece by piece as there is room, after
 * the sends before it to the same peer. It is done when all is in the channel: one that fits does
 * not need its receiver.
 *
 * A receiver reads a channel while it has a recv of that peer. The message at hand belongs to the
 * oldest recv with its tag. If there is none yet, it is `kept` in memory of this rank until one
 * comes, so that those after it with other tags get through.
 *
 * Each wait, also that of a collective, moves all channels of this rank on. So two ranks that wait
 * for different messages of each other do not wait for ever.
 *
 * Heads lie at whole cache lines, and all counts are multiples of a line.
 */

enum { PIECE_BYTES = 32 << 10, STREAMED_BYTES = 4 << 10 };

typedef struct head {
    uint64_t count;
    uint32_t type, tag;
} head;

typedef struct shm_sends {
    shm_message *first, *last; /* not all in the channel */
} shm_sends;

/* A message that came before its recv. */
typedef struct kept {
    struct kept *next;
    head head;
    shm_message *owner; /* the recv that came meanwhile; NULL: none */
    unsigned char bytes[];
} kept;

typedef struct shm_receives {
    shm_message *first, *last; /* not done, and without a message */
    kept *kept_first, *kept_last;

    /* The message at hand. */
    bool is_open;
    head head;
    size_t moved;
    shm_message *owner; /* its recv; NULL: `filled` gets it */
    kept *filled;
} shm_receives;

static size_t whole_lines(size_t size_bytes)
{
    return (size_bytes + SHM_LINE_BYTES - 1) / SHM_LINE_BYTES * SHM_LINE_BYTES;
}

static size_t bytes_of(const head *h)
{
    return h->count * dtype_size((dtype)h->type);
}

/* In the channel, with its head. */
static size_t length_of(const head *h)
{
    return whole_lines(sizeof *h + bytes_of(h));
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Few bytes are there sooner through the caches. */
static void put_piece(unsigned char *out, const void *in, size_t size_bytes)
{
    if (size_bytes < STREAMED_BYTES)
        memcpy(out, in, size_bytes);
    else
        memory_stream(out, in, size_bytes);
}

/* Copies at position `at` of the ring, in two pieces if that goes over its end. */
static void put(shm_channel *channel, uint64_t at, const void *data, size_t size_bytes)
{
    size_t begin = at % SHM_CHANNEL_BYTES, before = least(SHM_CHANNEL_BYTES - begin, size_bytes);
    put_piece(channel->bytes + begin, data, before);
    put_piece(channel->bytes, (const unsigned char *)data + before, size_bytes - before);
}

static void get(const shm_channel *channel, uint64_t at, void *data, size_t size_bytes)
{
    size_t begin = at % SHM_CHANNEL_BYTES, before = least(SHM_CHANNEL_BYTES - begin, size_bytes);
    memcpy(data, channel->bytes + begin, before);
    memcpy((unsigned char *)data + before, channel->bytes, size_bytes - before);
}

/* Which bytes of the data lie in bytes moved .. moved + some - 1 of the message. */
typedef struct stretch {
    size_t skip; /* so many of the bytes are head */
    size_t begin, size_bytes;
} stretch;

static stretch data_of(const head *h, size_t moved, size_t some)
{
    size_t skip = moved == 0 ? sizeof *h : 0, begin = moved + skip - sizeof *h;
    return (stretch){skip, begin, least(some - skip, bytes_of(h) - least(begin, bytes_of(h)))};
}

/* Writes sends into the channel as long as there is room. */
static void push(shm_messages *m, int peer)
{
    shm_sends *sends = &m->to[peer];
    shm_channel *channel = shm_region_channel(&m->sync->region, m->sync->region.rank, peer);
    uint64_t written = atomic_load_explicit(&channel->written, memory_order_relaxed);
    while (sends->first != NULL) {
        shm_message *s = sends->first;
        const collective *c = s->what;
        head h = {.count = c->count, .type = (uint32_t)c->type, .tag = (uint32_t)c->tag};
        uint64_t read = atomic_load(&channel->read);
        size_t room = SHM_CHANNEL_BYTES - (size_t)(written - read);
        size_t some = least(least(room, PIECE_BYTES), length_of(&h) - s->moved);
        if (some == 0 || room > SHM_CHANNEL_BYTES || room % SHM_LINE_BYTES != 0)
            return; /* no room, or the peer's counter is none of ours */
        stretch data = data_of(&h, s->moved, some);
        if (s->moved == 0)
            put(channel, written, &h, sizeof h);
        put(channel, written + data.skip, (const unsigned char *)c->in + data.begin,
            data.size_bytes);
        written += some;
        s->moved += some;
        atomic_store(&channel->written, written);
        shm_sync_ring(m->sync, peer);
        if (s->moved == length_of(&h)) {
            sends->first = s->next;
            m->under_way--;
            atomic_store(&s->is_done, true);
        }
    }
}

/* The first recv with this tag, taken off the list; NULL: none. */
static shm_message *take_recv(shm_receives *r, uint32_t tag)
{
    shm_message *before = NULL, *found = r->first;
    while (found != NULL && (uint32_t)found->what->tag != tag) {
        before = found;
        found = found->next;
    }
    if (found == NULL)
        return NULL;
    *(before == NULL ? &r->first : &before->next) = found->next;
    if (r->last == found)
        r->last = before;
    return found;
}

static status check_same(const head *h, const collective *c)
{
    if (h->count == c->count && h->type == (uint32_t)c->type)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "rank %d sends %zu x %s with tag %d, but this rank receives %zu x %s", c->root,
                (size_t)h->count, dtype_name((dtype)h->type), c->tag, c->count,
                dtype_name(c->type));
}

/* Takes the next head, which has come, and finds who gets the message. */
static status open_message(shm_receives *r, const shm_channel *channel, uint64_t at, int peer)
{
    get(channel, at, &r->head, sizeof r->head);
    size_t size_bytes;
    if (r->head.type >= DTYPE_COUNT ||
        !memory_product(r->head.count, dtype_size((dtype)r->head.type), &size_bytes) ||
        size_bytes > PTRDIFF_MAX / 2)
        return FAIL(STATUS_PEER, "rank %d scribbled over the shared memory", peer);
    r->owner = take_recv(r, r->head.tag);
    r->moved = 0;
    if (r->owner != NULL)
        TRY(check_same(&r->head, r->owner->what));
    if (r->owner == NULL) {
        kept *k = malloc(sizeof *k + size_bytes);
        if (k == NULL)
            return FAIL(STATUS_NO_MEMORY, "%zu bytes from rank %d with tag %u, before its recv",
                        size_bytes, peer, r->head.tag);
        *k = (kept){.head = r->head};
        *(r->kept_first == NULL ? &r->kept_first : &r->kept_last->next) = k;
        r->filled = r->kept_last = k;
    }
    r->is_open = true;
    return STATUS_OK;
}

static void end_recv(shm_messages *m, shm_message *owner)
{
    m->under_way--;
    atomic_store(&owner->is_done, true);
}

/* Gives a kept message, which is whole, to its recv. */
static void hand_over(shm_messages *m, shm_receives *r, kept *k, shm_message *owner)
{
    kept *before = NULL;
    for (kept *i = r->kept_first; i != k; i = i->next)
        before = i;
    *(before == NULL ? &r->kept_first : &before->next) = k->next;
    if (r->kept_last == k)
        r->kept_last = before;
    memcpy(owner->what->out, k->bytes, bytes_of(&k->head));
    free(k);
    end_recv(m, owner);
}

static void close_message(shm_messages *m, shm_receives *r)
{
    kept *k = r->filled;
    r->is_open = false;
    r->filled = NULL;
    if (k == NULL)
        end_recv(m, r->owner);
    else if (k->owner != NULL)
        hand_over(m, r, k, k->owner);
}

static bool is_wanted(const shm_receives *r)
{
    bool is_claimed = r->is_open && (r->owner != NULL || r->filled->owner != NULL);
    return r->first != NULL || is_claimed;
}

/* Reads from the channel what has come, as long as there is a recv. */
static status pull(shm_messages *m, int peer)
{
    shm_receives *r = &m->from[peer];
    shm_channel *channel = shm_region_channel(&m->sync->region, peer, m->sync->region.rank);
    uint64_t read = atomic_load_explicit(&channel->read, memory_order_relaxed);
    while (is_wanted(r)) {
        uint64_t written = atomic_load(&channel->written);
        size_t there = (size_t)(written - read);
        if (there == 0)
            return STATUS_OK;
        if (there > SHM_CHANNEL_BYTES || there % SHM_LINE_BYTES != 0)
            return FAIL(STATUS_PEER, "rank %d scribbled over the shared memory", peer);
        if (!r->is_open)
            TRY(open_message(r, channel, read, peer));
        size_t some = least(least(there, PIECE_BYTES), length_of(&r->head) - r->moved);
        stretch data = data_of(&r->head, r->moved, some);
        unsigned char *out = r->filled != NULL ? r->filled->bytes : r->owner->what->out;
        get(channel, read + data.skip, out + data.begin, data.size_bytes);
        read += some;
        r->moved += some;
        atomic_store(&channel->read, read);
        shm_sync_ring(m->sync, peer);
        if (r->moved == length_of(&r->head))
            close_message(m, r);
    }
    return STATUS_OK;
}

/* Moves all messages of this rank on; ctx: the shm_messages. *more: some are not done. */
static status shm_messages_move(void *ctx, bool *more)
{
    shm_messages *m = ctx;
    status st = STATUS_OK;
    pthread_mutex_lock(&m->lock);
    for (int peer = 0; peer < m->world_size && m->under_way > 0; peer++) {
        push(m, peer);
        if (st == STATUS_OK)
            st = pull(m, peer);
    }
    *more = m->under_way > 0;
    pthread_mutex_unlock(&m->lock);
    return st;
}

static status shm_messages_create(shm_sync *sync, int world_size, shm_messages *out)
{
    size_t n = (size_t)world_size;
    *out = (shm_messages){.sync = sync, .world_size = world_size};
    pthread_mutex_init(&out->lock, NULL);
    out->to = calloc(n, sizeof *out->to);
    out->from = calloc(n, sizeof *out->from);
    if (out->to == NULL || out->from == NULL) {
        shm_messages_free(out);
        return FAIL(STATUS_NO_MEMORY, "messages of %d ranks", world_size);
    }
    return STATUS_OK;
}

static void shm_messages_free(shm_messages *m)
{
    if (m->sync == NULL)
        return;
    for (int peer = 0; m->from != NULL && peer < m->world_size; peer++)
        while (m->from[peer].kept_first != NULL) {
            kept *k = m->from[peer].kept_first;
            m->from[peer].kept_first = k->next;
            free(k);
        }
    free(m->to);
    free(m->from);
    pthread_mutex_destroy(&m->lock);
    *m = (shm_messages){0};
}

/* Finds the oldest message that came before this recv; else the recv waits for one. */
static status launch_recv(shm_messages *m, shm_receives *r, shm_message *message)
{
    kept *k = r->kept_first;
    while (k != NULL && (k->owner != NULL || k->head.tag != (uint32_t)message->what->tag))
        k = k->next;
    if (k != NULL)
        TRY(check_same(&k->head, message->what));
    if (k == NULL) {
        *(r->first == NULL ? &r->first : &r->last->next) = message;
        r->last = message;
    } else if (k == r->filled) {
        k->owner = message;
    } else {
        hand_over(m, r, k, message);
    }
    return STATUS_OK;
}

/* Starts a send or recv. *message and *what are borrowed until it has been waited for, or to
 * shm_messages_free. A send goes into the channel at once, as far as there is room. */
static status shm_messages_launch(shm_messages *m, const collective *what, shm_message *message)
{
    status st = STATUS_OK;
    *message = (shm_message){.what = what};
    pthread_mutex_lock(&m->lock);
    m->under_way++;
    if (what->kind == COLLECTIVE_SEND) {
        shm_sends *sends = &m->to[what->root];
        *(sends->first == NULL ? &sends->first : &sends->last->next) = message;
        sends->last = message;
        push(m, what->root);
    } else {
        st = launch_recv(m, &m->from[what->root], message);
    }
    pthread_mutex_unlock(&m->lock);
    return st;
}

/* Returns once it is done: what is sent is in the channel, what is received is in place. Moves all
 * messages of this rank on. Failures of shm_sync_await_done; STATUS_INVALID if the other side of a
 * message that this rank receives has another count or type. */
static status shm_messages_wait(shm_messages *m, const shm_message *message, int64_t deadline_ns)
{
    bool sends = message->what->kind == COLLECTIVE_SEND;
    if (atomic_load(&message->is_done))
        return STATUS_OK;
    return shm_sync_await_done(m->sync,
                               &(shm_awaited){.done = &message->is_done,
                                              .peer = message->what->root,
                                              .what = sends ? "receive" : "send"},
                               deadline_ns);
}

enum { HEAP_ALIGN = 64 };

typedef struct shm_work {
    struct shm_work *next;
    collective what;
    atomic_bool ended;   /* its wait(): the next launch takes it off the queue */
    uint32_t index;      /* a collective's: counts this group's, from 1 */
    shm_message message; /* a send's or recv's */
} shm_work;

typedef struct shm_group {
    shm_sync sync;
    shm_exchange exchange;
    shm_messages messages;
    size_t heap_used;

    pthread_mutex_t lock; /* guards the queue: launches may come from another thread than waits */
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
