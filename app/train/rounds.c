#include "app/train/rounds.h"

#include "app/common/run_log.h"
#include "app/train/run_identity.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/ops.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { RECOVER_MS = 5000 }; /* for a device to end what was aborted */

static status copy_out(device *dev, const float *from, size_t count, float **out)
{
    if (*out == NULL)
        TRY(memory_alloc(count * sizeof **out, (void **)out));
    return dev->ops->download(dev, *out, from, count * sizeof **out);
}

static status copy_all(rank_context *rank, kept_state *out)
{
    const char *names[OPTIMIZER_MAX_STATES];
    float *states[OPTIMIZER_MAX_STATES];
    size_t n = optimizer_states(strategy_optimizer(rank->strategy), names, states);
    out->count = network_count(rank->net);
    TRY(copy_out(rank->dev, network_parameters(rank->net), out->count, &out->parameters));
    for (size_t i = 0; i < n && out->optimizer_steps > 0; i++) /* else there is none yet */
        TRY(copy_out(rank->dev, states[i], out->count, &out->states[i]));
    return rank_context_loss_scaling(rank, &out->scaling);
}

/* Copies it from the rank's device, whose process group has been destroyed: nothing that is
 * enqueued waits for another rank.
 * `updates`: of the optimizer; it may have begun one that has not come to its end. On failure there
 * is KEPT_STATE_NONE. */
static status kept_state_take(rank_context *rank, const kept_place *place, int64_t updates,
                              kept_state *out)
{
    const accelerator_ops *accelerator = rank->dev->ops->accelerator;
    out->step = KEPT_STATE_NONE;
    out->optimizer_steps = updates;
    if (accelerator != NULL && accelerator->recover != NULL)
        TRY(accelerator->recover(rank->dev, RECOVER_MS));
    TRY(copy_all(rank, out));
    out->place = *place;
    out->step = place->at.step;
    return STATUS_OK;
}

/* Copies parameters, optimizer state and loss scaling to the device of `rank`, of the same model
 * and optimizer. */
static status kept_state_restore(const kept_state *kept, rank_context *rank)
{
    const char *names[OPTIMIZER_MAX_STATES];
    float *states[OPTIMIZER_MAX_STATES];
    size_t n = optimizer_states(strategy_optimizer(rank->strategy), names, states);
    size_t size_bytes = kept->count * sizeof(float);
    device *dev = rank->dev;
    ASSERT(kept->count == network_count(rank->net) && kept->step == kept->place.at.step);
    TRY(dev->ops->upload(dev, network_parameters(rank->net), kept->parameters, size_bytes));
    for (size_t i = 0; i < n && kept->optimizer_steps > 0; i++)
        TRY(dev->ops->upload(dev, states[i], kept->states[i], size_bytes));
    optimizer_set_steps(strategy_optimizer(rank->strategy), kept->optimizer_steps);
    return rank_context_set_loss_scaling(rank, &kept->scaling);
}

void kept_state_free(kept_state *kept)
{
    free(kept->parameters);
    for (size_t i = 0; i < OPTIMIZER_MAX_STATES; i++)
        free(kept->states[i]);
    *kept = (kept_state){.step = KEPT_STATE_NONE};
}

/* The lowest rank that has the newest state; -1: none has any. */
static status find_newest(training *t, int *out)
{
    int n = t->rank.place.world_size;
    int64_t newest = KEPT_STATE_NONE, *steps = calloc((size_t)n, sizeof *steps);
    if (steps == NULL)
        return FAIL(STATUS_NO_MEMORY, "the steps of %d ranks", n);
    status st = process_group_all_gather(t->rank.group, &t->kept.step, steps, 1, DTYPE_I64, NULL);
    *out = -1;
    for (int rank = 0; rank < n && st == STATUS_OK; rank++)
        if (steps[rank] > newest) {
            newest = steps[rank];
            *out = rank;
        }
    free(steps);
    return st;
}

static status share_path(training *t, int root)
{
    return process_group_broadcast(t->rank.group, t->folder.path, sizeof t->folder.path, DTYPE_U8,
                                   root, NULL);
}

status rounds_share_folder(training *t)
{
    return share_path(t, 0);
}

/* `here` of `root` is that of all, and so is the run's folder. What is sent of the beginning is how
 * long ago it was: clocks of hosts differ. */
static status share_place(training *t, int root, kept_place *here)
{
    int64_t now_ns = clock_now_ns();
    here->began_ns = now_ns - here->began_ns;
    TRY(process_group_broadcast(t->rank.group, here, sizeof *here, DTYPE_U8, root, NULL));
    here->began_ns = now_ns - here->began_ns;
    t->progress.started_ns = here->began_ns;
    return share_path(t, root);
}

status rounds_let_first(training *t, status (*does)(training *), const char *refusal)
{
    status_kept why;
    status st = t->rank.place.rank == 0 ? does(t) : STATUS_OK;
    status_keep(&why);
    int64_t done = st == STATUS_OK;
    status told = process_group_broadcast(t->rank.group, &done, 1, DTYPE_I64, 0, NULL);
    if (st != STATUS_OK) {
        status_restore(&why);
        return st;
    }
    TRY(told);
    t->refused = done == 0;
    return t->refused ? FAIL(STATUS_PEER, "%s", refusal) : STATUS_OK;
}

static status continue_folder(training *t)
{
    TRY(run_folder_continue(&t->rank, &t->trainer.at, &t->folder));
    if (!t->folder.is_dry)
        run_log_open(t->folder.path);
    return STATUS_OK;
}

/* Another number of ranks. */
static status change_world(training *t, const former_world *was, position *at)
{
    rank_context *rank = &t->rank;
    world_change change;
    TRY(world_change_make(rank, was, at, &change));
    if (rank->place.rank != 0)
        return STATUS_OK;
    world_change_say(rank, &change, at);
    return result_note_change(&t->result, rank, &change, at);
}

static void say_round(training *t, int root)
{
    const rank_context *rank = &t->rank;
    const position *at = &t->trainer.at;
    int64_t now_ns = clock_now_ns();
    char place[PROGRESS_PLACE_BYTES], took[96] = "";
    progress_name_place(at->epoch, at->step_in_epoch, place);
    if (t->left_ns != 0)
        snprintf(took, sizeof took, "; left in %.2f s, waited %.2f s, opened in %.2f s",
                 clock_seconds(t->left_ns - t->failed_ns), clock_seconds(t->joined_ns - t->left_ns),
                 clock_seconds(now_ns - t->joined_ns));
    progress_line(&t->progress,
                  "round %" PRId64 ": %d ranks go on after %s (step %" PRId64
                  ") with the state of rank %d, in the processes that live%s",
                  rank->place.round, rank->place.world_size, place, at->step, root, took);
}

status rounds_continue(training *t, bool *continues)
{
    rank_context *rank = &t->rank;
    kept_place here = t->kept.place; /* the rank's own stays what it is until it keeps another */
    int root = -1;
    *continues = false;
    if (t->link == NULL)
        return STATUS_OK;
    TRY(find_newest(t, &root));
    if (root < 0)
        return STATUS_OK;
    TRY(share_place(t, root, &here));
    if (rank->place.rank == root)
        TRY(kept_state_restore(&t->kept, rank));
    TRY(strategy_scatter_state(rank->strategy, root));
    t->trainer.at = here.at;
    t->result.best = here.best;
    if (rank->place.rank == 0)
        say_round(t, root);
    run_identity_continue_sums(rank, here.sums);
    if (here.world.size != rank->place.world_size)
        TRY(change_world(t, &here.world, &t->trainer.at));
    TRY(rounds_let_first(t, continue_folder, "rank 0 cannot go on in the run's folder"));
    *continues = true;
    return STATUS_OK;
}

bool rounds_end_with(status st)
{
    return st == STATUS_PEER || st == STATUS_TIMEOUT || st == STATUS_REFUSED;
}

bool rounds_survives(const training *t, status st)
{
    const rank_context *rank = &t->rank;
    if (t->link == NULL || t->refused || !rank_context_outlives_rounds(rank->opts))
        return false;
    if (st == STATUS_OK)
        return rank->stop.paused && !rank->stop.agreed && !t->is_done;
    return rounds_end_with(st);
}

status rounds_finish(training *t)
{
    if (t->link == NULL)
        return STATUS_OK;
    elastic_finish(t->link);
    return process_group_barrier(t->rank.group);
}

status rounds_keep(training *t)
{
    const step_commits *commit = strategy_committed(t->rank.strategy);
    position at = t->trainer.at;
    rank_context_close_group(&t->rank);
    if (!t->runs) /* the round has not begun: what was kept before it still counts */
        return STATUS_OK;
    at.epoch_loss = t->trainer.began.epoch_loss + commit->loss;
    at.epoch_samples = t->trainer.began.epoch_samples + commit->images;
    if (commit->images > 0) /* else the epoch has not begun in this round */
        at.epoch_s =
            clock_seconds(clock_now_ns() - t->trainer.epoch_began_ns - t->trainer.tested_ns);
    at.epoch_timed += commit->images;
    kept_place here = {at, world_change_now(&t->rank), t->result.best, "", t->progress.started_ns};
    memcpy(here.sums, t->rank.sums, sizeof here.sums);
    return kept_state_take(&t->rank, &here, commit->updates + at.step - t->trainer.began.step,
                           &t->kept);
}

status rounds_await_next(training *t, rendezvous_place *place)
{
    int64_t was = place->round;
    TRY(elastic_left(t->link, t->kept.step, !t->runs));
    t->left_ns = clock_now_ns();
    TRY(elastic_await_join(t->link, &t->signals.asked_by, place));
    t->joined_ns = clock_now_ns();
    LOG_D("round %" PRId64 " after round %" PRId64 ": rank %d of %d", place->round, was,
          place->rank, place->world_size);
    return STATUS_OK;
}
