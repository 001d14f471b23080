/* The memory that the ranks of one host share: one sparse, sealed memfd, made by rank 0, handed to
 * the others over a UNIX socket, mapped whole by all.
 *
 *   control   counters and notes of every rank, meetings; each counter on its own cache line
 *   annexes   one to each note, of SHM_ANNEX_BYTES: data that does not fit the note itself
 *   slots     SHM_SLOTS of SHM_SLOT_BYTES per rank: through which data in ordinary memory passes
 *   channels  one from each rank to each: through which messages pass
 *   heaps     heap_bytes per rank: what process_group_alloc hands out
 */
#ifndef MNIST_DDP_DIST_BACKENDS_SHM_SHM_REGION_H
#define MNIST_DDP_DIST_BACKENDS_SHM_SHM_REGION_H

#include "dist/collective/collective.h"
#include "dist/health/first_cause.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SHM_SLOTS = 2, /* one is filled while the other is read */
    SHM_SLOT_BYTES = 1 << 19,
    SHM_CHANNEL_BYTES = 1 << 18,
    SHM_AHEAD = 64,  /* collectives that a rank may have announced and not ended */
    SHM_NOTES = 128, /* twice that: see shm_note */
    SHM_NOTE_WORDS = 11,
    SHM_ANNEX_BYTES = 512,
    SHM_MAX_RANKS = 1024,
    SHM_LINE_BYTES = 64,
    SHM_NOTE_BYTES = 2 * SHM_LINE_BYTES,
};

/* Of what all ranks wait for each other. */
typedef enum shm_stage {
    SHM_ANNOUNCED, /* collectives */
    SHM_STAGED,    /* steps: this rank's data is in its slot */
    SHM_REDUCED,   /* steps: the reduction of this rank's part is in its slot */
    SHM_DONE,      /* steps: this rank no longer touches any buffer of it */
    SHM_STAGES,
} shm_stage;

/* How far a rank is. Only that rank moves it on; compared modulo 2^32. Peers that are awake do
 * not look at that of SHM_ANNOUNCED, but at the note's index, which comes before. */
typedef struct shm_counter {
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t value;
} shm_counter;

/* Where ranks sleep until all have come to a stage. */
typedef struct shm_meeting {
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t turn; /* a futex: moves on to wake them */
    _Atomic uint32_t sleepers;
} shm_meeting;

/* What a rank announces of a collective: a peer that sees the index has all of its line, that is up
 * to 24 bytes of data. The next line is the other one of an aligned pair, which processors fetch
 * along with the first.
 *
 * A note is overwritten SHM_NOTES collectives later. Its rank has ended the collective SHM_AHEAD
 * before that one, so all ranks had announced that, and ended the one of the note. */
typedef struct shm_note {
    _Alignas(SHM_NOTE_BYTES) _Atomic uint32_t index; /* the collective's number; written last */
    _Atomic uint64_t seq;
    _Atomic uint64_t what;  /* kind, op, type, root and prescale, packed */
    _Atomic uint64_t count; /* elements */
    _Atomic uint64_t in;    /* its offset in this rank's heap; SHM_NO_OFFSET: it is not shown */
    _Atomic uint64_t words[SHM_NOTE_WORDS]; /* the data itself, if it fits; if it fits no annex
                                               either, the offset of `out` */
} shm_note;

#define SHM_NO_OFFSET UINT64_MAX

/* Where a rank sleeps until a channel of its moves. */
typedef struct shm_bell {
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t rings; /* a futex */
    _Atomic uint32_t sleeps;
} shm_bell;

typedef struct shm_rank {
    shm_counter counters[SHM_STAGES];
    shm_note notes[SHM_NOTES];
    shm_bell bell;
    _Atomic uint32_t left; /* it has closed its group */
} shm_rank;

/* A stream of bytes from one rank to another: byte i lies at i % SHM_CHANNEL_BYTES. */
typedef struct shm_channel {
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t written; /* bytes so far, by the sender */
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t read;    /* by the receiver */
    _Alignas(SHM_LINE_BYTES) unsigned char bytes[SHM_CHANNEL_BYTES];
} shm_channel;

typedef struct shm_control {
    uint64_t magic;
    uint64_t size_bytes;
    uint32_t layout, world_size;
    int creator_pid;
    void *creator_base; /* where that process has mapped the region */
    _Atomic int users;  /* who have that mapping: ranks that are threads of one process share it */
    first_cause_word first_cause;
    shm_meeting meetings[SHM_STAGES];
    shm_rank ranks[];
} shm_control;

typedef struct shm_region {
    shm_control *control; /* also the first byte */
    size_t size_bytes, heap_bytes;
    int rank, world_size;
} shm_region;

/* Blocks until this rank holds the region, at most until the deadline; other ranks may still be on
 * their way. STATUS_TIMEOUT, STATUS_NO_MEMORY, STATUS_PEER if rank 0 is gone or handed over
 * something else. */
status shm_region_create(const group_setup *setup, int64_t deadline_ns, shm_region *out);

/* The rank's slot of a step. */
unsigned char *shm_region_slot(const shm_region *region, int rank, uint32_t step);
shm_channel *shm_region_channel(const shm_region *region, int from, int to);
unsigned char *shm_region_heap(const shm_region *region, int rank);

/* What a rank tells the others of a collective before it begins. */

/* What a rank's note says of data that fits no annex: where they lie in its heap; SHM_NO_OFFSET:
 * not there, or not for others. */
typedef struct shm_offer {
    uint64_t in, out;
} shm_offer;

/* Does a giver's data lie in its note, or in that's annex? All ranks say the same. */
bool shm_note_fits_annex(const collective *c, int world_size);

/* Writes this rank's note of collective `index`, all but that, and its annex. An all_reduce out of
 * place whose `out` lies in the heap, and `in` does not, is copied there first and is in place for
 * the others. */
void shm_note_write(const shm_region *region, const collective *c, uint32_t index);

/* Of collective `index`, whose notes have come. STATUS_INVALID with the first rank that has
 * announced another collective than this rank. */
status shm_note_check_all(const shm_region *region, const collective *c, uint32_t index);

/* Sets out (world_size) to where data that fits lies. */
void shm_note_find_data(const shm_region *region, const collective *c, uint32_t index,
                        const void **out);

/* Of data that does not fit, offers (world_size). STATUS_PEER if a rank points outside its heap. */
status shm_note_read_offers(const shm_region *region, const collective *c, uint32_t index,
                            shm_offer *offers);

/* Ranks that wait until all have come to a stage: a short spin, then a futex. Between slices of
 * that they look for peers that died or left. */

/* What a rank does while it waits. Sets *more if there is some left that peers must come for. */
typedef status shm_idle_fn(void *ctx, bool *more);

typedef struct shm_sync {
    shm_region region;
    first_cause *cause;
    int looks; /* before the first pause, and between yields after that */
    atomic_bool aborted;
    shm_idle_fn *idle; /* NULL: nothing */
    void *idle_ctx;
} shm_sync;

/* Returns when all ranks have done so (first_cause_create, with its failures). Takes the region
 * over, also on failure. */
status shm_sync_create(shm_sync *sync, const shm_region *region, const group_setup *setup,
                       int64_t deadline_ns);

/* Tells all ranks that this one closes its group: whoever still waits fails. Those who wait for
 * stages that all have come to do not notice. Accepts all zero. */
void shm_sync_close(shm_sync *sync);

/* From any thread: this rank waits no longer, STATUS_PEER, within 50 ms. */
void shm_sync_abort(shm_sync *sync);

/* This rank has come to `value` of the stage. Whoever waits for that sees all that it has written;
 * the last rank wakes those that sleep. */
void shm_sync_arrive(shm_sync *sync, shm_stage stage, uint32_t value);

/* The two halves of that: peers see it, and then sleepers are woken. Between them a rank that is
 * about to wait itself may look for the others, while what it shows is on its way to them. */
void shm_sync_show(shm_sync *sync, shm_stage stage, uint32_t value);
void shm_sync_wake(shm_sync *sync, shm_stage stage, uint32_t value);

/* Looks a few times, without a pause, whether all have come to `want`. */
bool shm_sync_look(const shm_sync *sync, shm_stage stage, uint32_t want);

/* Returns once all ranks have come to `want`. STATUS_TIMEOUT at the deadline; STATUS_PEER if any
 * rank died or closed its group before. The message names the rank. Failures of sync->idle. */
status shm_sync_await_all(shm_sync *sync, shm_stage stage, uint32_t want, int64_t deadline_ns);

/* Wakes a rank that sleeps in shm_sync_await_done, after a channel of it has been written to or
 * read from. */
void shm_sync_ring(shm_sync *sync, int rank);

/* What shm_sync_await_done waits for, by sync->idle. */
typedef struct shm_awaited {
    const _Atomic bool *done;
    int peer;         /* it must move for that */
    const char *what; /* what it must do: "receive" */
} shm_awaited;

/* Calls sync->idle until *what->done. STATUS_TIMEOUT at the deadline; STATUS_PEER if the peer died
 * or closed its group before. The message names it. Failures of sync->idle. */
status shm_sync_await_done(shm_sync *sync, const shm_awaited *what, int64_t deadline_ns);

#endif
