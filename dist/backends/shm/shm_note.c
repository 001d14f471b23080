#include "dist/backends/shm/shm_note.h"

#include "dist/collective/collective.h"

#include <inttypes.h>
#include <string.h>

static uint64_t pack(const collective *c)
{
    uint32_t prescale;
    memcpy(&prescale, &c->prescale, sizeof prescale);
    return (uint64_t)prescale << 32 | (uint64_t)c->root << 12 | (uint64_t)c->type << 8 |
           (uint64_t)c->op << 4 | (uint64_t)c->kind;
}

/* What a giver shows of its memory. */
static size_t given_bytes(const collective *c, int world_size)
{
    return c->count * dtype_size(c->type) * (size_t)exchange_rows(c, world_size);
}

static bool fits(const collective *c, int world_size)
{
    return given_bytes(c, world_size) <= SHM_NOTE_WORDS * sizeof(uint64_t);
}

bool shm_note_fits_annex(const collective *c, int world_size)
{
    return given_bytes(c, world_size) <= SHM_ANNEX_BYTES;
}

/* Others read a rank's `in` at any time until they are done, so it is not shown if this rank
 * overwrites it meanwhile. */
static void write_offsets(const shm_region *region, const collective *c, uint64_t *in,
                          uint64_t *out)
{
    size_t size_bytes = given_bytes(c, region->world_size);
    if (c->kind == COLLECTIVE_ALL_TO_ALL && c->in == c->out)
        return;
    *in = shm_region_offset(region, c->in, size_bytes);
    if (c->kind != COLLECTIVE_ALL_REDUCE)
        return;
    *out = shm_region_offset(region, c->out, size_bytes);
    if (*out != SHM_NO_OFFSET && *in == SHM_NO_OFFSET) {
        memcpy(c->out, c->in, size_bytes);
        *in = *out;
    }
}

static shm_note *note_of(const shm_region *region, int rank, uint32_t index)
{
    return &region->control->ranks[rank].notes[index % SHM_NOTES];
}

void shm_note_write(const shm_region *region, const collective *c, uint32_t index)
{
    shm_note *note = note_of(region, region->rank, index);
    uint64_t in = SHM_NO_OFFSET, words[SHM_NOTE_WORDS] = {SHM_NO_OFFSET};
    size_t n_words = 1; /* what is not needed stays as it is, so that its line does, too */
    if (exchange_gives(c, region->rank)) {
        size_t size_bytes = given_bytes(c, region->world_size);
        if (fits(c, region->world_size)) {
            memcpy(words, c->in, size_bytes);
            n_words = (size_bytes + sizeof words[0] - 1) / sizeof words[0];
        } else if (shm_note_fits_annex(c, region->world_size))
            memcpy(shm_region_annex(region, region->rank, index), c->in, size_bytes);
        else
            write_offsets(region, c, &in, &words[0]);
    }
    atomic_store_explicit(&note->seq, c->seq, memory_order_relaxed);
    atomic_store_explicit(&note->what, pack(c), memory_order_relaxed);
    atomic_store_explicit(&note->count, c->count, memory_order_relaxed);
    atomic_store_explicit(&note->in, in, memory_order_relaxed);
    for (size_t i = 0; i < n_words; i++)
        atomic_store_explicit(&note->words[i], words[i], memory_order_relaxed);
}

static status check_same(const collective *c, uint64_t packed, int rank, shm_note *note)
{
    uint64_t seq = atomic_load_explicit(&note->seq, memory_order_relaxed);
    uint64_t what = atomic_load_explicit(&note->what, memory_order_relaxed);
    uint64_t count = atomic_load_explicit(&note->count, memory_order_relaxed);
    if (seq == c->seq && what == packed && count == c->count)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "rank %d issued another collective: %s #%" PRIu64 " of %" PRIu64
                " elements, but this rank issued %s #%" PRIu64
                " of %zu, or op, type, root or prescale differ",
                rank, collective_kind_name((collective_kind)(what & 15)), seq, count,
                collective_kind_name(c->kind), c->seq, c->count);
}

static bool lies_outside(const shm_region *region, uint64_t offset, size_t size_bytes)
{
    return offset != SHM_NO_OFFSET &&
           (offset > region->heap_bytes || size_bytes > region->heap_bytes - offset);
}

/* Not this rank's own: its line is with the peers that look at it, and to read it here would fetch
 * it back. */
status shm_note_check_all(const shm_region *region, const collective *c, uint32_t index)
{
    uint64_t packed = pack(c);
    for (int rank = 0; rank < region->world_size; rank++)
        if (rank != region->rank)
            TRY(check_same(c, packed, rank, note_of(region, rank, index)));
    return STATUS_OK;
}

void shm_note_find_data(const shm_region *region, const collective *c, uint32_t index,
                        const void **out)
{
    bool in_note = fits(c, region->world_size);
    for (int rank = 0; rank < region->world_size; rank++)
        out[rank] = in_note ? (const void *)note_of(region, rank, index)->words
                            : shm_region_annex(region, rank, index);
}

status shm_note_read_offers(const shm_region *region, const collective *c, uint32_t index,
                            shm_offer *offers)
{
    size_t size_bytes = given_bytes(c, region->world_size);
    for (int rank = 0; rank < region->world_size; rank++) {
        shm_note *note = note_of(region, rank, index);
        shm_offer *offer = &offers[rank];
        offer->in = atomic_load_explicit(&note->in, memory_order_relaxed);
        offer->out = atomic_load_explicit(&note->words[0], memory_order_relaxed);
        if (lies_outside(region, offer->in, size_bytes) ||
            lies_outside(region, offer->out, size_bytes))
            return FAIL(STATUS_PEER, "rank %d points outside its shared memory", rank);
    }
    return STATUS_OK;
}
