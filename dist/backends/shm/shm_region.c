#include "dist/backends/shm/shm_region.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "dist/collective/collective.h"
#include "dist/membership/keys.h"
#include "dist/net/socket.h"
#include "dist/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    LAYOUT = 7,                   /* moves on with every change to the structs */
    ALIGN_SLACK_BYTES = 64 << 10, /* what rounding up 1024 allocations can cost */
    NAME_BYTES = 64,
    TAKEN_BYTES = 4 << 20,
};

static const uint64_t MAGIC = 0x6d6e6973742d7368;
static const int SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

static size_t round_up(size_t size)
{
    size_t page_bytes = memory_page_bytes();
    return (size + page_bytes - 1) / page_bytes * page_bytes;
}

static size_t control_bytes(int world_size)
{
    return round_up(sizeof(shm_control) + sizeof(shm_rank) * (size_t)world_size);
}

/* Of all ranks' annexes and slots, and of all channels. */
static size_t annexes_bytes(int world_size)
{
    return (size_t)world_size * SHM_NOTES * SHM_ANNEX_BYTES;
}

static size_t slots_bytes(int world_size)
{
    return (size_t)world_size * SHM_SLOTS * SHM_SLOT_BYTES;
}

static size_t channels_bytes(int world_size)
{
    return round_up((size_t)world_size * (size_t)world_size * sizeof(shm_channel));
}

static status measure(const process_group_options *o, shm_region *region)
{
    size_t all_heaps;
    size_t limit = SIZE_MAX / 4;
    if (o->world_size > SHM_MAX_RANKS)
        return FAIL(STATUS_INVALID, "backend shm is for up to %d ranks, not %d", (int)SHM_MAX_RANKS,
                    o->world_size);
    if (o->shared_bytes > limit)
        return FAIL(STATUS_NO_MEMORY, "shared_bytes of %zu", o->shared_bytes);
    region->heap_bytes = round_up(o->shared_bytes) + ALIGN_SLACK_BYTES;
    if (!memory_product(region->heap_bytes, (size_t)o->world_size, &all_heaps) || all_heaps > limit)
        return FAIL(STATUS_NO_MEMORY, "%d ranks with %zu shared bytes each", o->world_size,
                    o->shared_bytes);
    region->size_bytes = control_bytes(o->world_size) + annexes_bytes(o->world_size) +
                         slots_bytes(o->world_size) + channels_bytes(o->world_size) + all_heaps;
    region->rank = o->rank;
    region->world_size = o->world_size;
    return STATUS_OK;
}

static status map(int fd, size_t size_bytes, shm_control **out)
{
    void *base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return FAIL(STATUS_NO_MEMORY, "map %zu bytes of shared memory: %s", size_bytes,
                    strerror(errno));
    *out = base;
    return STATUS_OK;
}

static status make(shm_region *region, int *out_fd)
{
    status st = STATUS_OK;
    int fd = memfd_create("mnist_ddp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return FAIL(STATUS_IO, "memfd_create: %s", strerror(errno));
    if (ftruncate(fd, (off_t)region->size_bytes) != 0 || fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
        st = FAIL(STATUS_IO, "size %zu bytes of shared memory: %s", region->size_bytes,
                  strerror(errno));
        goto out;
    }
    st = map(fd, region->size_bytes, &region->control);
    if (st != STATUS_OK)
        goto out;
    shm_control *control = region->control;
    control->magic = MAGIC;
    control->layout = LAYOUT;
    control->world_size = (uint32_t)region->world_size;
    control->size_bytes = region->size_bytes;
    control->creator_pid = (int)getpid();
    control->creator_base = control;
    atomic_init(&control->users, 1);
    *out_fd = fd;
    fd = -1; /* handed over */

out:
    if (fd >= 0)
        close(fd);
    return st;
}

static status random_name(char *name)
{
    uint64_t words[2];
    if (getrandom(words, sizeof words, 0) != (ssize_t)sizeof words)
        return FAIL(STATUS_IO, "getrandom: %s", strerror(errno));
    snprintf(name, NAME_BYTES, "mnist_ddp-%016llx%016llx", (unsigned long long)words[0],
             (unsigned long long)words[1]);
    return STATUS_OK;
}

/* Rank 0: makes the region and hands it to every other rank. */
static status offer(const group_setup *setup, int64_t deadline_ns, shm_region *region)
{
    char name[NAME_BYTES];
    int fd = -1, listener = -1;
    TRY(random_name(name));
    TRY(make(region, &fd));
    status st = socket_listen_local(name, &listener);
    keys_text key = keys_make(setup->prefix, KEYS_SHM, -1);
    if (st == STATUS_OK)
        st = store_set(setup->options->store, key.text, name, strlen(name));
    for (int given = 1; given < region->world_size && st == STATUS_OK; given++) {
        int peer = -1;
        st = socket_accept_local(listener, deadline_ns, &peer);
        if (st != STATUS_OK) {
            status_context(st, "%d of %d ranks fetched the shared memory", given - 1,
                           region->world_size - 1);
            break;
        }
        st = socket_send_descriptor(peer, fd, deadline_ns);
        close(peer);
    }
    if (listener >= 0)
        close(listener);
    close(fd);
    return st;
}

/* Checks a descriptor from rank 0: sealed, so that it cannot shrink under us, and of our layout. */
static status adopt(int fd, shm_region *region)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || (size_t)info.st_size != region->size_bytes ||
        (fcntl(fd, F_GET_SEALS) & SEALS) != SEALS)
        return FAIL(STATUS_PEER, "rank 0's shared memory is not a sealed file of %zu bytes",
                    region->size_bytes);
    shm_control *control = NULL;
    TRY(map(fd, region->size_bytes, &control));
    if (control->magic != MAGIC || control->layout != LAYOUT ||
        control->world_size != (uint32_t)region->world_size ||
        control->size_bytes != region->size_bytes) {
        munmap(control, region->size_bytes);
        return FAIL(STATUS_PEER, "rank 0's shared memory has another layout: is it another build?");
    }
    region->control = control;
    if (control->creator_pid != (int)getpid())
        return STATUS_OK;
    int users = atomic_load(&control->users);
    while (users > 0)
        if (atomic_compare_exchange_weak(&control->users, &users, users + 1)) {
            region->control = control->creator_base;
            munmap(control, region->size_bytes);
            break;
        }
    return STATUS_OK;
}

static status fetch(const group_setup *setup, int64_t deadline_ns, shm_region *region)
{
    char name[NAME_BYTES];
    int peer = -1, fd = -1;
    keys_text key = keys_make(setup->prefix, KEYS_SHM, -1);
    TRY(store_get_text(setup->options->store, key.text, deadline_ns, name, sizeof name));
    status st = socket_connect_local(name, deadline_ns, &peer);
    if (st == STATUS_OK)
        st = socket_receive_descriptor(peer, &fd, deadline_ns);
    if (peer >= 0)
        close(peer);
    if (st == STATUS_OK)
        st = adopt(fd, region);
    if (fd >= 0)
        close(fd);
    return st;
}

/* So that the first collectives do not stop at every page of notes and annexes. Only advice: older
 * kernels refuse. */
static void take_pages(const shm_region *region)
{
#ifdef MADV_POPULATE_WRITE
    size_t size_bytes = control_bytes(region->world_size) + annexes_bytes(region->world_size);
    if (size_bytes <= TAKEN_BYTES)
        (void)madvise(region->control, size_bytes, MADV_POPULATE_WRITE);
#else
    (void)region;
#endif
}

static void shm_region_close(shm_region *region);

status shm_region_create(const group_setup *setup, int64_t deadline_ns, shm_region *out)
{
    shm_region region = {0};
    TRY(measure(setup->options, &region));
    status st =
        region.rank == 0 ? offer(setup, deadline_ns, &region) : fetch(setup, deadline_ns, &region);
    if (st != STATUS_OK) {
        shm_region_close(&region);
        return status_context(st, "shared memory from rank 0");
    }
    take_pages(&region);
    *out = region;
    return STATUS_OK;
}

static void shm_region_close(shm_region *region)
{
    shm_control *control = region->control;
    if (control == NULL)
        return;
    bool shared = control->creator_pid == (int)getpid() && control->creator_base == control;
    if (!shared || atomic_fetch_sub(&control->users, 1) == 1)
        munmap(control, region->size_bytes);
    region->control = NULL;
}

static unsigned char *annexes(const shm_region *region)
{
    return (unsigned char *)region->control + control_bytes(region->world_size);
}

static unsigned char *slots(const shm_region *region)
{
    return annexes(region) + annexes_bytes(region->world_size);
}

static unsigned char *channels(const shm_region *region)
{
    return slots(region) + slots_bytes(region->world_size);
}

/* Of a rank's note of collective `index`; overwritten as that is. */
static unsigned char *shm_region_annex(const shm_region *region, int rank, uint32_t index)
{
    return annexes(region) + ((size_t)rank * SHM_NOTES + index % SHM_NOTES) * SHM_ANNEX_BYTES;
}

unsigned char *shm_region_slot(const shm_region *region, int rank, uint32_t step)
{
    return slots(region) + ((size_t)rank * SHM_SLOTS + step % SHM_SLOTS) * SHM_SLOT_BYTES;
}

shm_channel *shm_region_channel(const shm_region *region, int from, int to)
{
    size_t at = (size_t)from * (size_t)region->world_size + (size_t)to;
    return (shm_channel *)(void *)(channels(region) + at * sizeof(shm_channel));
}

unsigned char *shm_region_heap(const shm_region *region, int rank)
{
    return channels(region) + channels_bytes(region->world_size) +
           (size_t)rank * region->heap_bytes;
}

/* Offset of data[0..size_bytes-1] in this rank's own heap, or SHM_NO_OFFSET. */
static uint64_t shm_region_offset(const shm_region *region, const void *data, size_t size_bytes)
{
    uintptr_t heap = (uintptr_t)shm_region_heap(region, region->rank), at = (uintptr_t)data;
    if (at < heap || at - heap > region->heap_bytes ||
        size_bytes > region->heap_bytes - (at - heap))
        return SHM_NO_OFFSET;
    return at - heap;
}

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

/* Each rank sleeps once for a stage, however many ranks it waits for: only the last to come wakes
 * the sleepers. If ranks outnumber cores, most of the cost of a collective is being put to sleep
 * and woken.
 *
 * The lost wake-up: a sleeper first counts itself in `sleepers`, then notes the turn, then looks at
 * all counters once more, then sleeps if the kernel still finds that turn. A rank that comes first
 * stores its counter, then looks at `sleepers`, then at all counters, then moves the turn on. All
 * of these are sequentially consistent. So the last rank to store its counter finds all counters
 * there, and either it sees the sleeper or the sleeper sees its counter.
 */

enum {
    SPIN_NS = 40000,
    LOOKS = 32,        /* between pauses, and between yields */
    CROWDED_LOOKS = 1, /* who is waited for may need this core */
    SLICE_MS = 50,
    IDLE_SLICE_MS = 1, /* if peers come for messages meanwhile, for which nobody wakes this rank */
};

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

status shm_sync_create(shm_sync *sync, const shm_region *region, const group_setup *setup,
                       int64_t deadline_ns)
{
    bool crowded = region->world_size > cores_count();
    *sync = (shm_sync){.region = *region, .looks = crowded ? CROWDED_LOOKS : LOOKS};
    return first_cause_create(setup, &region->control->first_cause, deadline_ns, &sync->cause);
}

static void wake(shm_meeting *meeting)
{
    atomic_fetch_add(&meeting->turn, 1);
    futex_wake(&meeting->turn);
}

void shm_sync_close(shm_sync *sync)
{
    if (sync->cause != NULL) {
        first_cause_depart(sync->cause, &(departure){0});
        atomic_store(&sync->region.control->ranks[sync->region.rank].left, 1);
        for (int rank = 0; rank < sync->region.world_size; rank++)
            shm_sync_ring(sync, rank);
        for (int stage = 0; stage < SHM_STAGES; stage++)
            wake(&sync->region.control->meetings[stage]);
    }
    first_cause_destroy(sync->cause);
    shm_region_close(&sync->region);
}

void shm_sync_abort(shm_sync *sync)
{
    atomic_store(&sync->aborted, true);
}

static status check_aborted(const shm_sync *sync)
{
    return atomic_load(&sync->aborted) ? FAIL(STATUS_PEER, "the group was aborted") : STATUS_OK;
}

/* Sleeps until woken, at most `ms`; at once if the word is not `seen`. */
static void futex_sleep(_Atomic uint32_t *word, uint32_t seen, int ms, int64_t deadline_ns)
{
    int left_ms = clock_remaining_ms(deadline_ns);
    if (ms > left_ms)
        ms = left_ms;
    struct timespec slice = {.tv_nsec = (long)ms * 1000000};
    syscall(SYS_futex, (void *)word, FUTEX_WAIT, seen, &slice, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

typedef _Atomic uint32_t *sign_fn(shm_rank *rank, shm_stage stage, uint32_t value);

/* What tells peers that are awake that the rank has come to `value`. */
static _Atomic uint32_t *sign_of(shm_rank *rank, shm_stage stage, uint32_t value)
{
    return stage == SHM_ANNOUNCED ? &rank->notes[value % SHM_NOTES].index
                                  : &rank->counters[stage].value;
}

/* What sleepers look at. */
static _Atomic uint32_t *counter_of(shm_rank *rank, shm_stage stage, uint32_t value)
{
    (void)value;
    return &rank->counters[stage].value;
}

/* A rank that has not come to `want`; -1: all have. */
static inline int find_late_by(sign_fn *sign, const shm_sync *sync, shm_stage stage, uint32_t want)
{
    const shm_region *region = &sync->region;
    int peer = region->rank;
    for (int step = 1; step < region->world_size; step++) {
        peer = peer + 1 < region->world_size ? peer + 1 : 0;
        uint32_t value = atomic_load(sign(&region->control->ranks[peer], stage, want));
        if ((int32_t)(value - want) < 0)
            return peer;
    }
    return -1;
}

static int find_late(const shm_sync *sync, shm_stage stage, uint32_t want)
{
    return find_late_by(counter_of, sync, stage, want);
}

static bool have_all_come(const shm_sync *sync, shm_stage stage, uint32_t want)
{
    return find_late_by(sign_of, sync, stage, want) < 0;
}

static status do_idle_work(const shm_sync *sync, bool *more)
{
    *more = false;
    return sync->idle != NULL ? sync->idle(sync->idle_ctx, more) : STATUS_OK;
}

/* Between two looks: false once the time for spinning is over. *end_ns: 0 at first. */
static bool spin_on(int64_t *end_ns)
{
    int64_t now_ns = clock_now_ns();
    if (*end_ns == 0)
        *end_ns = now_ns + SPIN_NS;
    else if (now_ns >= *end_ns)
        return false;
    sched_yield(); /* the scheduler may have put the peer on this very core */
    return true;
}

bool shm_sync_look(const shm_sync *sync, shm_stage stage, uint32_t want)
{
    for (int i = 0; i < sync->looks; i++)
        if (have_all_come(sync, stage, want))
            return true;
    return false;
}

static status spin(const shm_sync *sync, shm_stage stage, uint32_t want, bool *all_came)
{
    int64_t end_ns = 0;
    bool more;
    do {
        for (int i = 0; i < sync->looks; i++) {
            *all_came = have_all_come(sync, stage, want);
            if (*all_came)
                return STATUS_OK;
            relax();
        }
        TRY(do_idle_work(sync, &more));
    } while (spin_on(&end_ns));
    return STATUS_OK;
}

void shm_sync_show(shm_sync *sync, shm_stage stage, uint32_t value)
{
    shm_rank *self = &sync->region.control->ranks[sync->region.rank];
    atomic_store_explicit(sign_of(self, stage, value), value, memory_order_release);
}

void shm_sync_wake(shm_sync *sync, shm_stage stage, uint32_t value)
{
    shm_control *control = sync->region.control;
    atomic_store(&control->ranks[sync->region.rank].counters[stage].value, value);
    if (atomic_load(&control->meetings[stage].sleepers) != 0 && find_late(sync, stage, value) < 0)
        wake(&control->meetings[stage]);
}

void shm_sync_arrive(shm_sync *sync, shm_stage stage, uint32_t value)
{
    shm_sync_show(sync, stage, value);
    shm_sync_wake(sync, stage, value);
}

/* A rank that died or left after its last collective has moved all its counters before: so if all
 * have come, that counts.
 */
static status check_peers(const shm_sync *sync, shm_stage stage, uint32_t want)
{
    TRY(check_aborted(sync));
    bool known = first_cause_is_known(sync->cause);
    int dead = peers_find_ended(first_cause_peers(sync->cause), 0, 0);
    if ((!known && dead < 0) || have_all_come(sync, stage, want))
        return STATUS_OK;
    /* A rank's own reason comes before its death, and before the failures that followed. */
    return known ? first_cause_known(sync->cause) : first_cause_death(sync->cause, dead);
}

static status fail_late(const shm_sync *sync, int peer, int64_t waited_ns)
{
    char who[PEERS_NAME_BYTES];
    shm_rank *late = &sync->region.control->ranks[peer];
    uint32_t announced = atomic_load(&late->counters[SHM_ANNOUNCED].value);
    uint64_t seq = atomic_load(&late->notes[announced % SHM_NOTES].seq);
    first_cause_give_up_on(sync->cause, peer);
    peers_name(first_cause_peers(sync->cause), peer, who);
    return FAIL(STATUS_TIMEOUT, "waited %.1f s for %s, whose latest collective is #%llu",
                clock_seconds(waited_ns), who, (unsigned long long)seq);
}

/* Looks at the peers after a slice, not before the first: most waits end within it. */
static status sleep_until_all_came(shm_sync *sync, shm_stage stage, uint32_t want,
                                   int64_t deadline_ns)
{
    shm_meeting *meeting = &sync->region.control->meetings[stage];
    int64_t start_ns = clock_now_ns();
    status st = STATUS_OK;
    bool slept = false, more = false;
    atomic_fetch_add(&meeting->sleepers, 1);
    for (;;) {
        uint32_t turn = atomic_load(&meeting->turn);
        int late = find_late(sync, stage, want);
        if (late < 0 || have_all_come(sync, stage, want))
            break;
        st = do_idle_work(sync, &more);
        if (slept && st == STATUS_OK)
            st = check_peers(sync, stage, want);
        if (st == STATUS_OK && clock_passed(deadline_ns))
            st = fail_late(sync, late, clock_now_ns() - start_ns);
        if (st != STATUS_OK)
            break;
        futex_sleep(&meeting->turn, turn, more ? IDLE_SLICE_MS : SLICE_MS, deadline_ns);
        slept = true;
    }
    atomic_fetch_sub(&meeting->sleepers, 1);
    return st;
}

status shm_sync_await_all(shm_sync *sync, shm_stage stage, uint32_t want, int64_t deadline_ns)
{
    bool all_came = shm_sync_look(sync, stage, want);
    if (!all_came)
        TRY(spin(sync, stage, want, &all_came));
    return all_came ? STATUS_OK : sleep_until_all_came(sync, stage, want, deadline_ns);
}

/* As with a meeting, either the sleeper sees what moved or whoever moved it sees the sleeper: both
 * are sequentially consistent, as are the channels' counters. */
void shm_sync_ring(shm_sync *sync, int rank)
{
    shm_bell *bell = &sync->region.control->ranks[rank].bell;
    if (atomic_load(&bell->sleeps) != 0) {
        atomic_fetch_add(&bell->rings, 1);
        futex_wake(&bell->rings);
    }
}

/* Other ranks that have closed their groups may have done all that they had to. */
static status fail_gone(const shm_sync *sync, int peer, bool has_left)
{
    char who[PEERS_NAME_BYTES];
    if (first_cause_is_loss(sync->cause))
        return first_cause_known(sync->cause);
    if (has_left)
        return first_cause_closed(first_cause_peers(sync->cause), peer);
    if (!first_cause_is_known(sync->cause))
        return first_cause_death(sync->cause, peer);
    peers_name(first_cause_peers(sync->cause), peer, who);
    return FAIL(STATUS_PEER, "%s is gone", who);
}

static status fail_waited(const shm_sync *sync, const shm_awaited *what, int64_t waited_ns)
{
    char who[PEERS_NAME_BYTES];
    first_cause_give_up_on(sync->cause, what->peer);
    peers_name(first_cause_peers(sync->cause), what->peer, who);
    return FAIL(STATUS_TIMEOUT, "waited %.1f s for %s to %s", clock_seconds(waited_ns), who,
                what->what);
}

/* Looks at the peer after a slice, not before the first. */
static status sleep_until_done(shm_sync *sync, const shm_awaited *what, int64_t deadline_ns)
{
    shm_bell *bell = &sync->region.control->ranks[sync->region.rank].bell;
    const _Atomic uint32_t *left = &sync->region.control->ranks[what->peer].left;
    const peers *processes = first_cause_peers(sync->cause);
    int64_t start_ns = clock_now_ns();
    bool slept = false, more;
    status st = STATUS_OK;
    atomic_store(&bell->sleeps, 1);
    for (;;) {
        uint32_t rings = atomic_load(&bell->rings);
        bool has_left = atomic_load(left) != 0; /* before the last look at what it sent */
        bool is_dead = slept && peers_find_ended(processes, what->peer, 0) == what->peer;
        st = do_idle_work(sync, &more);
        if (st != STATUS_OK || atomic_load(what->done))
            break;
        st = check_aborted(sync);
        if (st != STATUS_OK)
            break;
        if (has_left || is_dead)
            st = fail_gone(sync, what->peer, has_left);
        else if (clock_passed(deadline_ns))
            st = fail_waited(sync, what, clock_now_ns() - start_ns);
        if (st != STATUS_OK)
            break;
        futex_sleep(&bell->rings, rings, SLICE_MS, deadline_ns);
        slept = true;
    }
    atomic_store(&bell->sleeps, 0);
    return st;
}

status shm_sync_await_done(shm_sync *sync, const shm_awaited *what, int64_t deadline_ns)
{
    int64_t end_ns = 0;
    bool more;
    do {
        for (int i = 0; i < sync->looks; i++) {
            TRY(do_idle_work(sync, &more));
            if (atomic_load(what->done))
                return STATUS_OK;
            relax();
        }
    } while (spin_on(&end_ns));
    return sleep_until_done(sync, what, deadline_ns);
}
