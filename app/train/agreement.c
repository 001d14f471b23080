#include "app/train/agreement.h"

#include "base/clock.h"
#include "dist/membership/membership.h"

#include <stdio.h>
#include <string.h>

/* The first line in which rank 0's settings and those of `rank` differ. Cuts both texts up. */
static status compare(int rank, char *first, char *other)
{
    char *next_first = NULL, *next_other = NULL;
    char *a = strtok_r(first, "\n", &next_first), *b = strtok_r(other, "\n", &next_other);
    while (a != NULL && b != NULL && strcmp(a, b) == 0) {
        a = strtok_r(NULL, "\n", &next_first);
        b = strtok_r(NULL, "\n", &next_other);
    }
    if (a == NULL && b == NULL)
        return STATUS_OK;
    if (a == NULL || b == NULL)
        return FAIL(STATUS_INVALID, "ranks 0 and %d run different versions of mnist_ddp", rank);
    return FAIL(STATUS_INVALID,
                "rank 0 was started with %s, rank %d with %s: give all ranks the same", a, rank, b);
}

/* A meeting's compare(). */
static status compare_all(void *ctx, char *const records[], char **outcome)
{
    (void)outcome;
    char first[AGREEMENT_BYTES];
    for (int rank = 1; rank < *(const int *)ctx; rank++) {
        snprintf(first, sizeof first, "%s", records[0]);
        TRY(compare(rank, first, records[rank]));
    }
    return STATUS_OK;
}

status agreement_check(const char *settings, store *shared, int rank, int world_size,
                       int64_t timeout_ms)
{
    const membership ranks = {
        .store = shared, .prefix = "settings/", .member = rank, .n = world_size, .noun = "rank"};
    const meeting how = {.record = settings,
                         .deadline_ns = clock_deadline_ns(timeout_ms),
                         .late = "has not said its settings",
                         .compare = compare_all,
                         .ctx = &world_size};
    ASSERT(strlen(settings) < AGREEMENT_BYTES);
    return membership_meet(&ranks, &how, NULL);
}
