/* What a strategy implements; others include strategy.h.
 *
 * `rank` is the rank that trains, `self` what open has made. CONTRIBUTING.md lists what a new
 * strategy takes.
 *
 * If steps are replayed as graphs (can_be_captured, step_graphs.h), forward_backward, synchronize
 * and optimizer_step are called only in the first two steps of a number of samples: to warm up, and
 * to be recorded. A replay repeats what they have enqueued on the device, and nothing else.
 * begin_step is called before every step.
 */
#ifndef MNIST_DDP_APP_TRAIN_STRATEGY_OPS_H
#define MNIST_DDP_APP_TRAIN_STRATEGY_OPS_H

#include "app/train/strategy.h"

#include <stdio.h>

typedef struct rank_context rank_context;

typedef struct strategy_ops {
    strategy_facts facts;

    status (*check)(const options *opts, int world_size);
    status (*replicas)(const options *opts, int *out); /* NULL: 1 */

    /* NULL: it has no state. After a failure it holds nothing, and close is not called. */
    status (*open)(rank_context *rank, void **self);
    /* The rank's process group is destroyed, and with it process_group_alloc's memory. self may be
     * NULL. */
    void (*close)(void *self);

    void (*begin_step)(rank_context *rank, void *self, const step_plan *plan); /* NULL: nothing */
    status (*forward_backward)(rank_context *rank, void *self, const step_batch *b);
    status (*synchronize)(rank_context *rank, void *self); /* NULL: nothing */
    status (*optimizer_step)(rank_context *rank, void *self);

    status (*explain)(void *self, status st);                          /* NULL: nobody knows more */
    void (*describe)(const rank_context *rank, void *self, FILE *out); /* NULL: the facts say it */
    const char *(*backend)(const rank_context *rank, void *self);
    device_use (*use)(const rank_context *rank, void *self, int index);
    int64_t (*comm_ns)(const rank_context *rank, void *self,
                       int64_t exposed_ns); /* NULL: the exposed ones are all */
} strategy_ops;

extern const strategy_ops strategy_ddp, strategy_dp, strategy_ps, strategy_single;

#endif
