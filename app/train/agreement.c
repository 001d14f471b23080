#include "app/train/agreement.h"

#include "base/clock.h"
#include "dist/membership/membership.h"

#include <stdio.h>
#include <string.h>

enum { DIFFERENCES_BYTES = 512 };

/* Adds "lr 0.1" to "model cnn, ..."; what has no room is left out. */
static void add(char list[DIFFERENCES_BYTES], const char *setting)
{
    size_t used = strlen(list);
    snprintf(list + used, DIFFERENCES_BYTES - used, "%s%s", used > 0 ? ", " : "", setting);
}

/* All lines in which rank 0's settings and those of `rank` differ. Cuts both texts up. */
static status compare(int rank, char *first, char *other)
{
    char *next_first = NULL, *next_other = NULL;
    char *a = strtok_r(first, "\n", &next_first), *b = strtok_r(other, "\n", &next_other);
    char of_first[DIFFERENCES_BYTES] = "", of_other[DIFFERENCES_BYTES] = "";
    while (a != NULL && b != NULL) {
        if (strcmp(a, b) != 0) {
            add(of_first, a);
            add(of_other, b);
        }
        a = strtok_r(NULL, "\n", &next_first);
        b = strtok_r(NULL, "\n", &next_other);
    }
    if (a != NULL || b != NULL)
        return FAIL(STATUS_INVALID, "ranks 0 and %d run different versions of mnist_ddp", rank);
    if (of_first[0] == '\0')
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "rank 0 was started with %s, rank %d with %s: give all ranks the same", of_first,
                rank, of_other);
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
