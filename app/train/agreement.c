#include "app/train/agreement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 32 };

/* What a rank compares. */
typedef struct agreement {
    const char *settings;
    store *shared;
    int rank, world_size;
    int64_t timeout_ms;
} agreement;

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

static void key_of(const char *what, int rank, char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "%s/%d", what, rank);
}

/* This rank's settings against those of `peer`; one of the two is rank 0. */
static status compare_with(const agreement *own, int peer)
{
    char key[KEY_BYTES], ours[AGREEMENT_BYTES];
    void *theirs = NULL;
    size_t size_bytes = 0;
    key_of("settings", peer, key);
    TRY(store_get(own->shared, key, &theirs, &size_bytes));
    strcpy(ours, own->settings);
    status st = peer == 0 ? compare(own->rank, theirs, ours) : compare(peer, ours, theirs);
    free(theirs);
    return st;
}

static status compare_with_first(const agreement *own)
{
    char key[KEY_BYTES];
    status st = compare_with(own, 0);
    key_of("compared", own->rank, key);
    if (st == STATUS_OK)
        return store_set(own->shared, key, "", 0);
    (void)store_set(own->shared, key, "", 0); /* the difference is the news; keep its message */
    return st;
}

/* Rank 0 may serve the store: it stays until all have read its settings, also if they differ. */
static status compare_with_all(const agreement *own)
{
    char key[KEY_BYTES];
    for (int peer = 1; peer < own->world_size; peer++) {
        key_of("compared", peer, key);
        TRY(store_wait(own->shared, key, own->timeout_ms));
    }
    for (int peer = 1; peer < own->world_size; peer++)
        TRY(compare_with(own, peer));
    return STATUS_OK;
}

status agreement_check(const char *settings, store *shared, int rank, int world_size,
                       int64_t timeout_ms)
{
    const agreement own = {settings, shared, rank, world_size, timeout_ms};
    char key[KEY_BYTES];
    ASSERT(strlen(settings) < AGREEMENT_BYTES);
    key_of("settings", rank, key);
    TRY(store_set(shared, key, settings, strlen(settings)));
    return rank == 0 ? compare_with_all(&own) : compare_with_first(&own);
}
