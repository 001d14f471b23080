#include "app/train/step_commit.h"

#include "app/train/rank_context.h"
#include "kernels/ops.h"

#include <string.h>

void step_commit_begin(struct rank_context *rank)
{
    rank->commit = (step_commit){.updates = optimizer_steps(rank->opt)};
}

void step_commit_reset_score(step_commit *commit)
{
    commit->read = 0;
}

/* The step's losses of this rank, for all. */
static status launch(rank_context *rank, int images)
{
    score so_far;
    step_commit *commit = &rank->commit;
    TRY(network_read_score(rank->net, &so_far));
    commit->step[0] = so_far.loss_sum - commit->read;
    commit->step[1] = (double)images;
    commit->read = so_far.loss_sum;
    const collective all = {.kind = COLLECTIVE_ALL_REDUCE,
                            .op = REDUCE_SUM,
                            .type = DTYPE_F64,
                            .in = commit->step,
                            .out = commit->step,
                            .count = 2};
    return process_group_launch(rank->group, &all, NULL, &commit->sent);
}

/* A GPU has not computed the losses yet. And works are waited for in the order of their launch:
 * with --no-overlap, or PowerSGD, there are gradients that leave only when they are waited for. */
static bool can_launch_early(const rank_context *rank)
{
    return rank->dev->ops->accelerator == NULL && rank->opts->overlap &&
           strcmp(rank->opts->comm_hook, "powersgd") != 0;
}

status step_commit_launch(struct rank_context *rank, int images)
{
    return can_launch_early(rank) ? launch(rank, images) : STATUS_OK;
}

status step_commit_wait(struct rank_context *rank, int images)
{
    step_commit *commit = &rank->commit;
    if (rank->dev->ops->accelerator != NULL) {
        TRY(rank->dev->ops->synchronize(rank->dev));
        TRY(process_group_check(rank->group));
    }
    if (!can_launch_early(rank))
        TRY(launch(rank, images));
    TRY(process_group_wait(rank->group, commit->sent, NULL));
    commit->loss += commit->step[0];
    commit->images += (int64_t)commit->step[1];
    return STATUS_OK;
}
