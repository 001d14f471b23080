/* What a strategy implements; others include strategy.h.
 *
 * `rank` is the rank that trains, `self` what open has made. A new strategy is a file with its
 * table, a line in strategy.c and a word in the option table.
 */
#ifndef MNIST_DDP_APP_TRAIN_STRATEGY_OPS_H
#define MNIST_DDP_APP_TRAIN_STRATEGY_OPS_H

#include "app/train/strategy.h"

typedef struct rank_context rank_context;

typedef struct strategy_ops {
    strategy_facts facts;

    status (*check)(const options *opts, int world_size);
    status (*replicas)(const options *opts, int *out); /* NULL: 1 */

    status (*open)(rank_context *rank, void **self); /* NULL: it has no state */
    void (*close)(void *self);                       /* self may be NULL */

    void (*begin_step)(rank_context *rank, void *self, const step_plan *plan); /* NULL: nothing */
    status (*forward_backward)(rank_context *rank, void *self, const step_batch *b);
    status (*synchronize)(rank_context *rank, void *self); /* NULL: nothing */
    status (*optimizer_step)(rank_context *rank, void *self);

    status (*explain)(void *self, status st); /* NULL: nobody knows more */
    const char *(*backend)(const rank_context *rank, void *self);
    device_use (*use)(const rank_context *rank, void *self, int index);
    int64_t (*comm_ns)(const rank_context *rank, void *self,
                       int64_t exposed_ns); /* NULL: the exposed ones are all */
} strategy_ops;

extern const strategy_ops strategy_ddp, strategy_dp, strategy_ps, strategy_single;

#endif
