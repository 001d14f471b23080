/* Ranks that were started with different settings or data would train nonsense or wait for each
 * other for ever: they compare what they were told and have found before they begin. */
#ifndef MNIST_DDP_APP_TRAIN_AGREEMENT_H
#define MNIST_DDP_APP_TRAIN_AGREEMENT_H

#include "app/options/options.h"
#include "base/thread.h"
#include "dist/store/store.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    AGREEMENT_BYTES = 3072,
    AGREEMENT_LIST_BYTES = 768,
    AGREEMENT_DATA_BYTES = 320,
};

struct optimizer;
struct rank_context;

/* "data 44bc2cf5ad770999 (MNIST from /data)". */
void agreement_name_data(const struct rank_context *rank, char out[AGREEMENT_DATA_BYTES]);

/* What a rank that knows its data and device must have as the others: a line for each. */
status agreement_of_rank(const struct rank_context *rank, char out[AGREEMENT_BYTES]);

/* The settings in which two such texts differ, "--lr=0.1, --seed=2", as each has them. */
typedef struct agreement_difference {
    char of_a[AGREEMENT_LIST_BYTES], of_b[AGREEMENT_LIST_BYTES];
    bool other_version; /* one has lines that the other does not know */
} agreement_difference;

/* Whether they differ; of the data only the digest counts. */
bool agreement_differ(const char *a, const char *b, agreement_difference *out);

/* `settings`: a line "name value" for each, in a fixed order; at most AGREEMENT_BYTES with the 0.
 * All ranks' are compared with rank 0's. *peers: the ranks that may use this rank's cores, however
 * many launchers have started them; left as it is if that is not known. Blocks until all ranks are
 * there, at most timeout_ms. STATUS_INVALID, on all ranks, names the setting and both values;
 * STATUS_PEER a rank whose record in the store is none. */
status agreement_check(const char *settings, store *shared, int rank, int world_size,
                       int64_t timeout_ms, cores_peers *peers);

/* Sets *out to a hash of data, parameters and the state of `opt`, which is NULL if ranks have
 * different parts of it. All ranks call it: STATUS_DEVICE if this one's are not rank 0's. */
status agreement_on_state(struct rank_context *rank, struct optimizer *opt, uint64_t *out);

#endif
