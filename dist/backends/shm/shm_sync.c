/* The lost wake-up: a waiter first counts itself in `waiters`, then looks at the value once more,
 * then sleeps if the kernel still finds that value; a publisher first stores the value, then looks
 * at `waiters`. All four are sequentially consistent, so one of the two sees the other.
 */
#include "dist/backends/shm/shm_sync.h"

#include "base/clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 40000, SPIN_CROWDED_NS = 2000, SPINS_PER_LOOK = 32, SLICE_MS = 50 };

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

status shm_sync_create(shm_sync *sync, const shm_region *region, const group_setup *setup,
                       int64_t deadline_ns)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    *sync = (shm_sync){
        .region = *region,
        .spin_ns = region->world_size <= cores ? SPIN_NS : SPIN_CROWDED_NS, /* a core for each */
    };
    return first_cause_create(setup, &region->control->first_cause, deadline_ns, &sync->cause);
}

static void leave(const shm_sync *sync)
{
    shm_rank *self = &sync->region.control->ranks[sync->region.rank];
    first_cause_depart(sync->cause, &(departure){0});
    futex_wake(&self->announced.value);
    futex_wake(&self->staged.value);
    futex_wake(&self->done.value);
}

void shm_sync_close(shm_sync *sync)
{
    if (sync->cause != NULL)
        leave(sync);
    first_cause_destroy(sync->cause);
    shm_region_close(&sync->region);
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

/* The slow path's look at the peers. A rank that died or left after its last collective has moved
 * all its counters before: so if the counter has come, that counts.
 */
static status check_peers(const shm_sync *sync, shm_counter *counter, uint32_t want)
{
    bool known = first_cause_is_known(sync->cause);
    int dead = peers_find_ended(first_cause_peers(sync->cause), 0, 0);
    if ((!known && dead < 0) || reached(counter, want))
        return STATUS_OK;
    /* A rank's own reason comes before its death, and before the failures that followed. */
    return known ? first_cause_known(sync->cause) : first_cause_death(sync->cause, dead);
}

static status fail_late(const shm_sync *sync, int peer, int64_t waited_ns)
{
    char who[PEERS_NAME_BYTES];
    shm_rank *late = &sync->region.control->ranks[peer];
    uint32_t announced = atomic_load(&late->announced.value);
    uint64_t seq = atomic_load(&late->notes[announced % SHM_NOTES].seq);
    first_cause_give_up_on(sync->cause, peer);
    peers_name(first_cause_peers(sync->cause), peer, who);
    return FAIL(STATUS_TIMEOUT, "waited %.1f s for %s, whose latest collective is #%llu",
                clock_seconds(waited_ns), who, (unsigned long long)seq);
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
