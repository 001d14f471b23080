#include "app/train/agreement.h"

#include "base/clock.h"
#include "dist/membership/membership.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIFFERENCES_BYTES = 512, CORES_BYTES = 17 /* 16 digits and the line's end */ };

#define UNKNOWN "0000000000000000\n"

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

/* A meeting's compare(). The outcome is the numbers of all ranks' cores, which stand before their
 * settings. */
static status compare_all(void *ctx, char *const records[], char **outcome)
{
    int world_size = *(const int *)ctx;
    char first[AGREEMENT_BYTES];
    for (int rank = 0; rank < world_size; rank++)
        if (strlen(records[rank]) < CORES_BYTES)
            return FAIL(STATUS_PEER,
                        "the settings of rank %d make no sense: does something else use this "
                        "store, or another version of mnist_ddp?",
                        rank);
    for (int rank = 1; rank < world_size; rank++) {
        snprintf(first, sizeof first, "%s", records[0] + CORES_BYTES);
        TRY(compare(rank, first, records[rank] + CORES_BYTES));
    }
    char *all = malloc((size_t)world_size * CORES_BYTES + 1);
    if (all == NULL)
        return FAIL(STATUS_NO_MEMORY, "the cores of %d ranks", world_size);
    for (int rank = 0; rank < world_size; rank++)
        memcpy(all + rank * CORES_BYTES, records[rank], CORES_BYTES);
    all[world_size * CORES_BYTES] = '\0';
    *outcome = all;
    return STATUS_OK;
}

static void find_peers(const char *all, int rank, int world_size, cores_peers *out)
{
    const char *own = all + rank * CORES_BYTES;
    cores_peers found = {0};
    if (strlen(all) != (size_t)world_size * CORES_BYTES || strncmp(own, UNKNOWN, CORES_BYTES) == 0)
        return;
    for (int i = 0; i < world_size; i++) {
        if (strncmp(all + i * CORES_BYTES, own, CORES_BYTES) != 0)
            continue;
        found.index += i < rank;
        found.count++;
    }
    *out = found;
}

status agreement_check(const char *settings, store *shared, int rank, int world_size,
                       int64_t timeout_ms, cores_peers *peers)
{
    char record[CORES_BYTES + AGREEMENT_BYTES], *all = NULL;
    const membership ranks = {.store = shared,
                              .prefix = "settings/",
                              .member = rank,
                              .n = world_size,
                              .noun = "rank",
                              .of_job = true};
    const meeting how = {.record = record,
                         .deadline_ns = clock_deadline_ns(timeout_ms),
                         .late = "has not said its settings",
                         .compare = compare_all,
                         .ctx = &world_size};
    ASSERT(strlen(settings) < AGREEMENT_BYTES);
    snprintf(record, sizeof record, "%016" PRIx64 "\n%s", cores_number(), settings);
    TRY(membership_meet(&ranks, &how, &all));
    find_peers(all, rank, world_size, peers);
    free(all);
    return STATUS_OK;
}
