#include "app/train/progress_bar.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void pace_begin_epoch(pace *p, int64_t now_ns)
{
    p->epoch_started_ns = now_ns;
}

void pace_leave_out(pace *p, int64_t ns)
{
    p->epoch_started_ns += ns;
}

/* The first step takes longer than the others: as soon as there is a second one, time counts from
 * its end. Tests and checkpoints count: as many are to come. */
static void estimate_end(pace *p, const rank_context *rank, const step_line *line)
{
    int64_t step = line->epoch * line->steps + line->step;
    int64_t left = rank->opts->epochs * line->steps - step - 1;
    int64_t since_ns = p->is_under_way ? p->first_ns : p->epoch_started_ns;
    int64_t done = p->is_under_way ? step - p->first_step : 1;
    if (!p->is_under_way) {
        p->is_under_way = true;
        p->first_step = step;
        p->first_ns = line->now_ns;
    }
    if (done > 0)
        p->end_ns = line->now_ns +
                    (int64_t)((double)(line->now_ns - since_ns) * (double)left / (double)done);
}

void pace_note(pace *p, const rank_context *rank, const step_line *line)
{
    double elapsed_s = clock_seconds(line->now_ns - p->epoch_started_ns);
    p->images_per_s =
        (double)line->samples * rank->place.world_size / (elapsed_s > 0 ? elapsed_s : 1);
    p->steps_per_s = p->images_per_s / (double)rank_context_global_batch(rank);
    estimate_end(p, rank, line);
}

/* A wait that is shown lasts a second, and whom it is for is looked up once a second. */
static const int64_t SHOWN_NS = 1000000000;

enum { MOST_NAMED = 3 };

/* What is left out last, and so on. */
enum {
    STEPS_PRIORITY = 1,
    PASSED_PRIORITY,
    IMAGES_PRIORITY,
    BAR_PRIORITY,
    LOSS_PRIORITY,
    LEFT_PRIORITY,
    DOING_PRIORITY,
    EPOCH_PRIORITY
};

/* Whom the ranks of this host wait for if all of them have come. */
static void name_nodes(const rendezvous_place *place, char out[LATE_RANKS_BYTES])
{
    int nodes = place->local_world_size > 0 ? place->world_size / place->local_world_size : 1;
    snprintf(out, LATE_RANKS_BYTES, "%s",
             nodes == 2  ? "node 1"
             : nodes > 2 ? "another node"
                         : "the other ranks");
}

/* Ranks of this host that have not entered the collective: "rank 1", "rank 1 (stopped), rank 3". */
static void name_late(const rank_context *rank, uint64_t awaited, char out[LATE_RANKS_BYTES])
{
    const char *folder = rank_context_dump_folder();
    int named = 0, length = 0;
    for (int r = 0; folder != NULL && r < rank->place.local_world_size; r++) {
        rank_snapshot s;
        if (r == rank->place.rank || rank_status_read(folder, r, &s) != STATUS_OK ||
            s.attempt != (int)rendezvous_place_attempt(&rank->place) || s.entered >= awaited)
            continue;
        if (named++ < MOST_NAMED)
            length += snprintf(out + length, (size_t)(LATE_RANKS_BYTES - length), "%srank %d%s",
                               named > 1 ? ", " : "", r,
                               s.state == RANK_STOPPED ? " (stopped)"
                               : s.state == RANK_GONE  ? " (gone)"
                                                       : "");
    }
    if (named > MOST_NAMED)
        snprintf(out + length, (size_t)(LATE_RANKS_BYTES - length), ", ...");
    if (named == 0)
        name_nodes(&rank->place, out);
}

/* Does rank 0 wait for others, for a second or longer? */
static bool look_for_late(progress_bar *bar, const rank_snapshot *own, int64_t now_ns)
{
    if (own->waits != bar->waits || own->waits == 0) {
        bar->waits = own->waits;
        bar->since_ns = now_ns;
        bar->looked_ns = 0;
    }
    if (bar->waits == 0 || now_ns - bar->since_ns < SHOWN_NS)
        return false;
    if (now_ns - bar->looked_ns >= SHOWN_NS) {
        bar->looked_ns = now_ns;
        name_late(bar->rank, bar->waits, bar->late);
    }
    return true;
}

/* So many columns has a number up to this one: what stands after it keeps its place. */
static int digits(int number)
{
    return snprintf(NULL, 0, "%d", number);
}

static void tell_training(const progress_bar *bar, status_parts *out)
{
    int steps = bar->step.steps;
    status_parts_add(out, DOING_PRIORITY, "%*d/%d", digits(steps), bar->step.step + 1, steps);
    status_parts_add(out, LOSS_PRIORITY, "loss %.4f", bar->loss);
    status_parts_add(out, IMAGES_PRIORITY, "%.0f images/s", bar->pace.images_per_s);
    status_parts_add(out, STEPS_PRIORITY,
                     bar->pace.steps_per_s < 10 ? "%.1f steps/s" : "%.0f steps/s",
                     bar->pace.steps_per_s);
}

static void tell_evaluation(const rank_context *rank, status_parts *out)
{
    const dataset *set = atomic_load_explicit(&rank->evaluated, memory_order_relaxed);
    uint32_t tested = atomic_load_explicit(&rank->tested, memory_order_relaxed);
    uint32_t images = set != NULL ? set->count : rank->test_set.count;
    status_parts_add(out, DOING_PRIORITY, "%s %*" PRIu32 "/%" PRIu32 " images",
                     set == &rank->val_set ? "validating" : "testing", digits((int)images),
                     tested < images ? tested : images, images);
}

/* What rank 0 does now. */
static void tell_doing(progress_bar *bar, int64_t now_ns, status_parts *out)
{
    const rank_context *rank = bar->rank;
    rank_snapshot own;
    rank_status_look(rank->page, &own);
    if (look_for_late(bar, &own, now_ns))
        status_parts_add(out, DOING_PRIORITY, "waiting for %s (%.0f s)", bar->late,
                         clock_seconds(now_ns - bar->since_ns));
    else if (own.now == MOMENT_EVALUATION)
        tell_evaluation(rank, out);
    else if (own.now == MOMENT_CHECKPOINT)
        status_parts_add(out, DOING_PRIORITY, "saving a checkpoint");
    else if (bar->step.steps == 0)
        status_parts_add(out, DOING_PRIORITY, "starting");
    else
        tell_training(bar, out);
}

static void tell_time(const progress_bar *bar, int64_t now_ns, status_parts *out)
{
    int64_t left_ns = bar->pace.end_ns - now_ns; /* <= 0: not known, or the last test goes on */
    status_parts_add_time(out, PASSED_PRIORITY, clock_seconds(now_ns - bar->started_ns), "passed");
    if (left_ns > 0)
        status_parts_add_time(out, LEFT_PRIORITY, clock_seconds(left_ns), "left");
}

static void tell(void *ctx, status_parts *out)
{
    progress_bar *bar = ctx;
    int64_t now_ns = clock_now_ns();
    pthread_mutex_lock(&bar->lock);
    status_parts_add(out, EPOCH_PRIORITY, "epoch %" PRId64 "/%" PRId64, bar->step.epoch + 1,
                     bar->rank->opts->epochs);
    tell_doing(bar, now_ns, out);
    tell_time(bar, now_ns, out);
    out->bar_priority = BAR_PRIORITY;
    if (bar->step.steps > 0)
        out->done = (double)(bar->step.step + 1) / bar->step.steps;
    pthread_mutex_unlock(&bar->lock);
    atomic_store_explicit(&bar->is_drawn, true, memory_order_relaxed);
}

status progress_bar_open(int fd, const rank_context *rank, int64_t started_ns, int64_t epoch,
                         progress_bar *out)
{
    *out = (progress_bar){.rank = rank, .started_ns = started_ns, .step = {.epoch = epoch}};
    pthread_mutex_init(&out->lock, NULL);
    return status_line_open(fd, tell, out, &out->line);
}

void progress_bar_close(progress_bar *bar)
{
    if (!bar->line.open)
        return;
    status_line_close(&bar->line);
    pthread_mutex_destroy(&bar->lock);
}

bool progress_bar_wants_step(const progress_bar *bar, int step, int steps)
{
    return atomic_load_explicit(&bar->is_drawn, memory_order_relaxed) ||
           (bar->line.open && step + 1 == steps);
}

void progress_bar_note(progress_bar *bar, const step_line *step, const pace *p, double loss)
{
    pthread_mutex_lock(&bar->lock);
    bar->step = *step;
    bar->pace = *p;
    bar->loss = loss;
    pthread_mutex_unlock(&bar->lock);
    atomic_store_explicit(&bar->is_drawn, false, memory_order_relaxed);
}
