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
#include "dist/backends/shm/shm_sync.h"

#include "base/clock.h"
#include "base/thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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
