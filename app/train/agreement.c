#include "app/train/agreement.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 1024, KEY_BYTES = 32 };

/* One "name value" per line, in a fixed order. */
static void describe(const job *j, char *out)
{
    const options *o = j->opts;
    snprintf(out, TEXT_BYTES,
             "model %s\noptimizer %s\nlr %.17g\nmomentum %.17g\nweight-decay %.17g\nnesterov %d\n"
             "gamma %.17g\nepochs %" PRId64 "\nbatch-size %d\naccum %" PRId64 "\nseed %" PRId64
             "\ntraining images %u\ntest images %u\nshuffle %d\ndrop-last %d\ndry-run %d\n"
             "target-acc %.17g\neval-every %" PRId64
             "\nresume %s\nsave-every %s\nbackend %s\nbucket-cap-mb %.17g\namp "
             "%s\ntf32 %d\ncuda-graph %d\nnccl-nvls %d\nmode %s\ntrace %d\n",
             model_kind_name(j->model), optimizer_kind_name(j->optimizer.kind), j->lr, o->momentum,
             o->weight_decay, o->nesterov, o->gamma, o->epochs, j->batch_size, o->accum, o->seed,
             j->train_set.count, j->test_set.count, o->shuffle, o->drop_last, o->dry_run,
             o->target_acc, o->eval_every, o->resume != NULL ? o->resume : "no", o->save_every,
             o->backend, o->bucket_cap_mb, o->amp, o->tf32, o->cuda_graph, o->nccl_nvls, o->mode,
             o->trace != NULL);
}

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
static status compare_with(const job *j, store *shared, int peer)
{
    char key[KEY_BYTES], ours[TEXT_BYTES];
    void *theirs = NULL;
    size_t size_bytes = 0;
    key_of("settings", peer, key);
    TRY(store_get(shared, key, &theirs, &size_bytes));
    describe(j, ours);
    status st = peer == 0 ? compare(j->place.rank, theirs, ours) : compare(peer, ours, theirs);
    free(theirs);
    return st;
}

static status compare_with_first(const job *j, store *shared)
{
    char key[KEY_BYTES];
    status st = compare_with(j, shared, 0);
    key_of("compared", j->place.rank, key);
    if (st == STATUS_OK)
        return store_set(shared, key, "", 0);
    (void)store_set(shared, key, "", 0); /* the difference is the news; keep its message */
    return st;
}

/* Rank 0 may serve the store: it stays until all have read its settings, also where they differ. */
static status compare_with_all(const job *j, store *shared)
{
    char key[KEY_BYTES];
    for (int peer = 1; peer < j->place.world_size; peer++) {
        key_of("compared", peer, key);
        TRY(store_wait(shared, key, j->opts->timeout * 1000));
    }
    for (int peer = 1; peer < j->place.world_size; peer++)
        TRY(compare_with(j, shared, peer));
    return STATUS_OK;
}

status agreement_check(const job *j)
{
    store *shared = j->rdzv != NULL ? rendezvous_store(j->rdzv) : NULL;
    if (shared == NULL)
        return STATUS_OK;
    char key[KEY_BYTES], ours[TEXT_BYTES];
    describe(j, ours);
    key_of("settings", j->place.rank, key);
    TRY(store_set(shared, key, ours, strlen(ours)));
    return j->place.rank == 0 ? compare_with_all(j, shared) : compare_with_first(j, shared);
}
