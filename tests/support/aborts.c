#include "tests/support/aborts.h"

#include "base/clock.h"

#include <pthread.h>
#include <string.h>

enum {
    BEFORE_MS = 150,
    AWAY_MS = 600,
    SOON_MS = 250, /* 50, and a machine that is busy */
    TELL_MS = 2000,
};

#define REASON "the node's lease has ended"

typedef struct aborter {
    process_group *group;
    int64_t at_ns;
} aborter;

static void *abort_later(void *arg)
{
    aborter *a = arg;
    clock_sleep_ms(clock_remaining_ms(a->at_ns));
    a->at_ns = clock_now_ns();
    process_group_abort(a->group, REASON);
    return NULL;
}

static status expect_reason(status st)
{
    if (st == STATUS_PEER && strstr(status_text(), REASON) != NULL)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "an aborted collective has ended with: %s",
                st == STATUS_OK ? "success" : status_text());
}

/* A point of the clock that all ranks have: who is later ends the others' waits with its own words.
 */
static status agree_on_time(process_group *group, int64_t *at_ns)
{
    double at_s = clock_seconds(clock_deadline_ns(BEFORE_MS));
    TRY(process_group_all_reduce(group, &at_s, 1, DTYPE_F64, REDUCE_MAX, NULL));
    *at_ns = (int64_t)(at_s * 1e9);
    return STATUS_OK;
}

static status all_reduce(process_group *group)
{
    float data[1000] = {1};
    return process_group_all_reduce(group, data, 1000, DTYPE_F32, REDUCE_SUM, NULL);
}

status aborts_end_waits(process_group *group, int rank, int world_size, void *arg)
{
    aborter a = {.group = group};
    pthread_t thread;
    (void)arg;
    TRY(agree_on_time(group, &a.at_ns)); /* all have come */
    if (rank == world_size - 1) {
        clock_sleep_ms(AWAY_MS);
        return STATUS_OK;
    }
    int error = pthread_create(&thread, NULL, abort_later, &a);
    ASSERT(error == 0);
    status st = all_reduce(group);
    int64_t end_ns = clock_now_ns();
    status_kept said;
    status_keep(&said);
    pthread_join(thread, NULL);
    status_restore(&said);
    TRY(expect_reason(st));
    if (end_ns - a.at_ns > SOON_MS * INT64_C(1000000))
        return FAIL(STATUS_INVALID, "a wait has ended %.3f s after the abort",
                    clock_seconds(end_ns - a.at_ns));
    TRY(expect_reason(all_reduce(group)));
    process_group_abort(group, "another reason");
    TRY(expect_reason(process_group_check(group)));
    clock_sleep_ms(AWAY_MS); /* who leaves before another one's abort is that one's reason */
    return STATUS_OK;
}

status aborts_are_told(process_group *group, int rank, int world_size, void *arg)
{
    const int ranks[] = {0, 1, 2};
    process_group *own = NULL;
    (void)arg;
    ASSERT(world_size <= 3);
    TRY(process_group_new_group(group, &(sub_group){.ranks = ranks, .n = world_size}, &own));
    status st = all_reduce(own); /* all have come */
    if (st == STATUS_OK && rank > 0)
        st = expect_reason(all_reduce(own));
    else if (st == STATUS_OK)
        process_group_abort(own, REASON);
    process_group_destroy(own);
    clock_sleep_ms(TELL_MS); /* MPI's launcher ends all after the first that ends so */
    return st;
}
