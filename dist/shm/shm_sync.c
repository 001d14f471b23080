/* The lost wake-up: a waiter first counts itself in `waiters`, then looks at the value once more,
 * then sleeps if the kernel still finds that value; a publisher first stores the value, then looks
 * at `waiters`. All four are sequentially consistent, so one of the two sees the other.
 */
#include "dist/shm/shm_sync.h"

#include "base/clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 40000, SPIN_CROWDED_NS = 2000, SPINS_PER_LOOK = 32, SLICE_MS = 50 };

void shm_sync_init(shm_sync *sync, const shm_region *region)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    *sync = (shm_sync){.region = *region,
                       .spin_ns = region->world_size <= cores ? SPIN_NS : SPIN_CROWDED_NS,
                       .lost = -1};
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Sleeps until woken, at most one slice; at once if the word is not `seen`. */
static void futex_sleep(_Atomic uint32_t *word, uint32_t seen, int64_t deadline_ns)
{
    int ms = clock_remaining_ms(deadline_ns);
    if (ms > SLICE_MS)
        ms = SLICE_MS;
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

static bool reached(shm_counter *counter, uint32_t want)
{
    return (int32_t)(atomic_load(&counter->value) - want) >= 0;
}

static bool spin(shm_counter *counter, uint32_t want, int64_t spin_ns)
{
    int64_t end_ns = 0;
    for (;;) {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (reached(counter, want))
                return true;
            relax();
        }
        int64_t now_ns = clock_now_ns();
        if (end_ns == 0)
            end_ns = now_ns + spin_ns;
        else if (now_ns >= end_ns)
            return false;
        sched_yield(); /* the scheduler may have put the peer on this very core */
    }
}

void shm_sync_publish(shm_counter *counter, uint32_t value)
{
    atomic_store(&counter->value, value);
    if (atomic_load(&counter->waiters) != 0)
        futex_wake(&counter->value);
}

static int pid_of(const shm_sync *sync, int rank)
{
    return atomic_load(&sync->region.control->ranks[rank].pid);
}

static status fail_left(shm_sync *sync, uint32_t left)
{
    int leaver = (int)(left & 0xffff) - 1, lost = (int)(left >> 16) - 1;
    if (leaver >= sync->region.world_size || lost >= sync->region.world_size)
        return FAIL(STATUS_PEER, "a rank scribbled over the shared memory");
    sync->lost = lost >= 0 ? lost : leaver;
    if (lost >= 0)
        return FAIL(STATUS_PEER,
                    "rank %d (pid %d) is lost, said rank %d (pid %d) and closed its group", lost,
                    pid_of(sync, lost), leaver, pid_of(sync, leaver));
    return FAIL(STATUS_PEER, "rank %d (pid %d) has closed its process group", leaver,
                pid_of(sync, leaver));
}

/* The slow path's look around. A rank that died or left after its last collective has moved all its
 * counters first, and those that it waited for have moved theirs: so the counter has the last word.
 */
static status check_peers(shm_sync *sync, shm_counter *counter, uint32_t want)
{
    uint32_t left = atomic_load(&sync->region.control->left);
    int dead = sync->watch == NULL ? -1 : peer_watch_dead(sync->watch, 0);
    if ((left == 0 && dead < 0) || reached(counter, want))
        return STATUS_OK;
    if (left != 0) /* its reason comes before its death, and before others' that followed */
        return fail_left(sync, left);
    sync->lost = dead;
    return FAIL(STATUS_PEER, "rank %d (pid %d) is gone", dead, peer_watch_pid(sync->watch, dead));
}

static status fail_late(shm_sync *sync, int peer, int64_t waited_ns)
{
    shm_rank *late = &sync->region.control->ranks[peer];
    sync->lost = peer;
    if (atomic_load(&late->joined.value) == 0)
        return FAIL(STATUS_TIMEOUT, "rank %d has not joined within %.1f s", peer,
                    clock_seconds(waited_ns));
    uint32_t announced = atomic_load(&late->announced.value);
    uint64_t seq = atomic_load(&late->notes[announced % SHM_NOTES].seq);
    return FAIL(STATUS_TIMEOUT,
                "waited %.1f s for rank %d (pid %d), whose latest collective is #%llu",
                clock_seconds(waited_ns), peer, pid_of(sync, peer), (unsigned long long)seq);
}

static status sleep_until_reached(shm_sync *sync, int peer, shm_counter *counter, uint32_t want,
                                  int64_t deadline_ns)
{
    int64_t start_ns = clock_now_ns();
    status st = STATUS_OK;
    atomic_fetch_add(&counter->waiters, 1);
    for (;;) {
        uint32_t seen = atomic_load(&counter->value);
        if ((int32_t)(seen - want) >= 0)
            break;
        st = check_peers(sync, counter, want);
        if (st != STATUS_OK)
            break;
        if (clock_passed(deadline_ns)) {
            st = fail_late(sync, peer, clock_now_ns() - start_ns);
            break;
        }
        futex_sleep(&counter->value, seen, deadline_ns);
    }
    atomic_fetch_sub(&counter->waiters, 1);
    return st;
}

status shm_sync_await(shm_sync *sync, int peer, shm_counter *counter, uint32_t want,
                      int64_t deadline_ns)
{
    if (reached(counter, want) || spin(counter, want, sync->spin_ns))
        return STATUS_OK;
    return sleep_until_reached(sync, peer, counter, want, deadline_ns);
}

void shm_sync_leave(shm_sync *sync)
{
    shm_control *control = sync->region.control;
    shm_rank *self = &control->ranks[sync->region.rank];
    uint32_t nobody = 0;
    uint32_t left = (uint32_t)(sync->region.rank + 1) | (uint32_t)(sync->lost + 1) << 16;
    atomic_compare_exchange_strong(&control->left, &nobody, left);
    futex_wake(&self->joined.value);
    futex_wake(&self->announced.value);
    futex_wake(&self->staged.value);
    futex_wake(&self->done.value);
}
