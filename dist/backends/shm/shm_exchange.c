/* Every collective is one exchange: givers show what they have, takers read it (its table is in
 * dist/collective/collective.h). A giver's data lies in one of three places:
 *
 *   in its note      a few numbers, or in the note's annex up to SHM_ANNEX_BYTES: the takers have
 *                    them with the announcement. Nobody waits a second time.
 *   in its heap      takers read it there, as it lies.
 *   in its slots     all else: chunk by chunk, each in a round of its own, in two slots in turn.
 *                    While takers read one, the giver fills the other.
 *
 *                        round 1        round 2        round 3
 *        giver    slot 1 [fill]         wait, then     [fill]
 *                 slot 0         [fill]                wait, then  ...
 *        taker           wait   [read 1]       [read 2]      [read 3]
 *
 * Givers of one collective may differ in this. If none needs slots there is one round for all.
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
 * A round ends with `done`. Before a giver fills a slot again, all ranks are done with the round
 * that used it last. At the end every rank waits until all are done: then what it has shown is its
 * own again, and it knows that all others have moved all their counters. So it may leave without
 * disturbing those that still look at them.
 */
#include "dist/backends/shm/shm_exchange.h"

#include "base/memory.h"
#include "dist/collective/collective.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 8 << 10 };

status shm_exchange_create(shm_sync *sync, int world_size, shm_exchange *out)
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

void shm_exchange_free(shm_exchange *x)
{
    free(x->offers);
    free(x->given);
    free(x->outs);
    *x = (shm_exchange){0};
}

enum { KEEP_UP_SHIFT = 20 }; /* every 2^20 rounds */

static status finish_round(shm_exchange *x, int64_t deadline_ns)
{
    return shm_sync_await_all(x->sync, SHM_DONE, x->round, deadline_ns);
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
    shm_sync_arrive(x->sync, SHM_DONE, ++x->round);
    return finish_round(x, deadline_ns);
}

/* Takers read it where it lies: it is shown, and its owner does not overwrite it meanwhile. */
static bool is_read_in_heap(const shm_offer *offer)
{
    return offer->in != SHM_NO_OFFSET && offer->in != offer->out;
}

/* How a collective is cut into rounds. */
typedef struct rounds {
    const collective *c;
    size_t rows, row_bytes; /* of a giver's `in` */
    size_t most;            /* elements of a row in one round */
    uint32_t first, n;
    bool staged; /* a giver uses slots */
    bool reduced;
} rounds;

static rounds cut(const shm_exchange *x, const collective *c)
{
    const shm_region *region = &x->sync->region;
    size_t size = dtype_size(c->type), rows = (size_t)exchange_rows(c, region->world_size);
    rounds r = {.c = c, .rows = rows, .row_bytes = c->count * size, .first = x->round + 1};
    r.reduced = c->kind == COLLECTIVE_ALL_REDUCE && region->world_size > 2;
    for (int rank = 0; rank < region->world_size; rank++)
        if (exchange_is_read(c, rank) && !is_read_in_heap(&x->offers[rank]))
            r.staged = true;
    r.most = r.staged || r.reduced ? SHM_SLOT_BYTES / (rows * size) : c->count;
    r.n = (uint32_t)((c->count + r.most - 1) / r.most);
    return r;
}

/* Elements of each row in round `k` of them. */
static size_t count_of(const rounds *r, uint32_t k)
{
    size_t left = r->c->count - k * r->most;
    return left < r->most ? left : r->most;
}

/* Fills this rank's slot for round k, if it needs one. */
static status stage(shm_exchange *x, const rounds *r, uint32_t k, int64_t deadline_ns)
{
    const shm_region *region = &x->sync->region;
    uint32_t round = r->first + k;
    size_t size = dtype_size(r->c->type), some_bytes = count_of(r, k) * size;
    if (!r->staged && !r->reduced)
        return STATUS_OK;
    TRY(shm_sync_await_all(x->sync, SHM_DONE, round - SHM_SLOTS, deadline_ns));
    if (exchange_is_read(r->c, region->rank) && !is_read_in_heap(&x->offers[region->rank])) {
        unsigned char *slot = shm_region_slot(region, region->rank, round);
        const unsigned char *in = (const unsigned char *)r->c->in + k * r->most * size;
        for (size_t row = 0; row < r->rows; row++)
            memory_stream(slot + row * some_bytes, in + row * r->row_bytes, some_bytes);
    }
    shm_sync_arrive(x->sync, SHM_STAGED, round);
    return STATUS_OK;
}

/* Sets x->given to what this rank takes in round k. */
static void find_given(shm_exchange *x, const rounds *r, uint32_t k)
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

/* Round k of an all_reduce: this rank's part into its slot, then all parts from their slots. */
static status take_reduced(shm_exchange *x, const rounds *r, uint32_t k, int64_t deadline_ns)
{
    const shm_region *region = &x->sync->region;
    const collective *c = r->c;
    uint32_t round = r->first + k;
    size_t size = dtype_size(c->type), some = count_of(r, k);
    exchange_part own = exchange_part_of(c, some, region->rank, region->world_size);
    reduce_to_slot(x, c, own, shm_region_slot(region, region->rank, round));
    shm_sync_arrive(x->sync, SHM_REDUCED, round);
    TRY(shm_sync_await_all(x->sync, SHM_REDUCED, round, deadline_ns));
    unsigned char *out = (unsigned char *)c->out + k * r->most * size;
    for (int step = 0; step < region->world_size; step++) {
        int rank = (region->rank + step) % region->world_size;
        exchange_part part = exchange_part_of(c, some, rank, region->world_size);
        memcpy(out + part.begin * size, shm_region_slot(region, rank, round) + part.begin * size,
               (part.end - part.begin) * size);
    }
    return STATUS_OK;
}

static status do_round(shm_exchange *x, const rounds *r, uint32_t k, int64_t deadline_ns)
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

static status do_rounds(shm_exchange *x, const collective *c, int64_t deadline_ns)
{
    rounds r = cut(x, c);
    TRY(stage(x, &r, 0, deadline_ns));
    for (uint32_t k = 0; k < r.n; k++) {
        if (k + 1 < r.n)
            TRY(stage(x, &r, k + 1, deadline_ns));
        TRY(do_round(x, &r, k, deadline_ns));
    }
    x->round += r.n;
    return finish_round(x, deadline_ns);
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

/* Rounds are compared modulo 2^32, so that a counter that many collectives do not use must not
 * stay far behind. */
static void keep_up(shm_exchange *x)
{
    shm_sync_arrive(x->sync, SHM_STAGED, x->round);
    shm_sync_arrive(x->sync, SHM_REDUCED, x->round);
}

status shm_exchange_run(shm_exchange *x, const collective *c, uint32_t index, int64_t deadline_ns)
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
    uint32_t before = x->round;
    TRY(in_heaps ? reduce_parts_in_heaps(x, c, deadline_ns) : do_rounds(x, c, deadline_ns));
    if ((before ^ x->round) >> KEEP_UP_SHIFT != 0)
        keep_up(x);
    return STATUS_OK;
}
