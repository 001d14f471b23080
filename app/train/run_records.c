#include "app/train/run_records.h"

#include "base/clock.h"
#include "base/log.h"
#include "kernels/ops.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

/* metrics.jsonl and the event file. */

static bool keeps_step(const run_records *r, const step_facts *f)
{
    return r->metrics != NULL && f->step % r->rank->opts->log_interval == 0;
}

static void keep_step(run_records *r, const step_facts *f)
{
    double images = (double)(f->samples - r->rate_since) * r->rank->place.world_size;
    metrics_entry entry = {.event = METRICS_STEP,
                           .step = f->number,
                           .epoch = f->epoch,
                           .now_ns = f->now_ns,
                           .loss = f->loss,
                           .grad_norm = f->grad_norm,
                           .lr = f->lr,
                           .images_per_s = images / clock_seconds(f->now_ns - r->rate_since_ns)};
    r->rate_since_ns = f->now_ns;
    r->rate_since = f->samples;
    metrics_add(r->metrics, &entry);
}

/* Sets what was found, or that nothing was (NULL). */
static void note_test(const run_records *r, const evaluation *found, metrics_entry *entry)
{
    double loss = found != NULL ? found->loss : (double)NAN;
    double accuracy = found != NULL ? evaluation_accuracy(found) : (double)NAN;
    bool on_test = found == &r->result->test;
    entry->test_loss = on_test ? loss : (double)NAN;
    entry->test_acc = on_test ? accuracy : (double)NAN;
    entry->val_loss = on_test ? (double)NAN : loss;
    entry->val_acc = on_test ? (double)NAN : accuracy;
    entry->validates = r->rank->val_set.count > 0;
}

static void keep_test(run_records *r, const test_facts *f)
{
    metrics_entry entry = {.event =
                               f->found == &r->result->test ? METRICS_TEST : METRICS_VALIDATION,
                           .step = f->number,
                           .epoch = f->epoch,
                           .now_ns = clock_now_ns(),
                           .lr = f->lr};
    note_test(r, f->found, &entry);
    metrics_add(r->metrics, &entry);
}

/* An epoch that was resumed after its last step has no images. */
static double epoch_rate(const epoch_facts *f)
{
    return f->images > 0 ? (double)f->images / f->train_s : (double)NAN;
}

static void keep_epoch(run_records *r, const epoch_facts *f)
{
    metrics_entry entry = {.event = METRICS_EPOCH,
                           .step = f->number,
                           .epoch = f->epoch,
                           .now_ns = clock_now_ns(),
                           .loss = f->train_loss,
                           .lr = f->lr,
                           .images_per_s = epoch_rate(f)};
    note_test(r, f->tested, &entry);
    metrics_add(r->metrics, &entry);
}

/* --event-log (app/common/event_log.h). */

static status open_events(run_records *r)
{
    char host[HOST_NAME_MAX + 1] = "", node[HOST_NAME_MAX + 32];
    const rendezvous_place *place = &r->rank->place;
    (void)gethostname(host, sizeof host - 1);
    snprintf(node, sizeof node, "%s_%d", host, (int)getpid());
    r->step = (event_log_step){.round = rendezvous_place_attempt(place),
                               .rank = place->rank,
                               .world_size = place->world_size};
    return event_log_open(r->rank->opts->event_log, place->run_id, node, &r->events);
}

void run_records_round(run_records *r, const position *at, event_log_opening *opening)
{
    if (r->events == NULL)
        return;
    opening->round = r->step.round;
    opening->rank = r->step.rank;
    opening->world_size = r->step.world_size;
    opening->step = at->step;
    opening->epoch = at->epoch;
    event_log_opens(r->events, opening);
}

static void log_step_begins(run_records *r, const position *at, int step)
{
    const uint32_t *indices;
    if (r->events == NULL)
        return;
    r->step.step = at->step + 1;
    r->step.epoch = at->epoch + 1;
    if (!r->rank->opts->event_log_steps)
        return;
    r->step.samples = loader_step_indices(r->rank->loader, step, &indices);
    r->step.hash = 0;
    for (int64_t i = 0; i < r->step.samples; i++)
        r->step.hash += event_log_sample(indices[i]);
    event_log_step_begins(r->events, &r->step);
}

/* result.json. */

/* A replayed step moves as many bytes as its recording did; no call counts them. The run's first
 * step has ended only when the device has done it. */
static status count_step(run_records *r)
{
    result *to = r->result;
    device *dev = r->rank->dev;
    device_use after = strategy_use(r->rank->strategy, 0);
    device_use step = {.sent_bytes = after.sent_bytes - r->before.sent_bytes,
                       .received_bytes = after.received_bytes - r->before.received_bytes};
    if (!to->graph || step.sent_bytes > 0 || step.received_bytes > 0)
        r->moved = step;
    to->moved.sent_bytes += r->moved.sent_bytes;
    to->moved.received_bytes += r->moved.received_bytes;
    if (++to->steps > 1)
        return STATUS_OK;
    TRY(dev->ops->synchronize(dev));
    to->setup_s = clock_seconds(clock_now_ns() - r->started_ns);
    return STATUS_OK;
}

static void count_epoch(run_records *r, const epoch_facts *f)
{
    result *to = r->result;
    to->train_s[to->epochs++] = f->train_s;
    to->images_per_epoch = f->images;
    to->images_per_s = fmax(to->images_per_s, epoch_rate(f));
}

/* Who hears of what. */

status run_records_open(const rank_context *rank, run_records *r)
{
    r->rank = rank;
    TRY(open_events(r));
    return readback_open(rank->dev, sizeof(score), &r->totals);
}

void run_records_close(run_records *r)
{
    event_log_close(r->events);
    readback_close(&r->totals);
    metrics_close(r->metrics);
    *r = (run_records){0};
}

void run_records_begin_rate(run_records *r, uint32_t samples)
{
    r->rate_since_ns = clock_now_ns();
    r->rate_since = samples;
}

void run_records_step_begins(run_records *r, const position *at, int step)
{
    log_step_begins(r, at, step);
    r->before = strategy_use(r->rank->strategy, 0);
}

status run_records_step_ends(run_records *r)
{
    if (r->events != NULL && !r->has_stepped)
        event_log_first_step(r->events, &r->step);
    r->has_stepped = true;
    return count_step(r);
}

status run_records_step(run_records *r, const step_facts *f, const score *totals)
{
    bool shows = progress_wants_step(r->progress, f->step, f->steps), keeps = keeps_step(r, f);
    if (!shows && !keeps)
        return STATUS_OK;
    TRY(run_records_say(r));
    TRY(readback_start(&r->totals, totals));
    r->late = *f;
    r->late.now_ns = clock_now_ns();
    r->shows = shows;
    r->keeps = keeps;
    bool is_there = r->totals.dev->ops->accelerator == NULL;
    return is_there ? run_records_say(r) : STATUS_OK;
}

status run_records_say(run_records *r)
{
    if (!r->totals.under_way)
        return STATUS_OK;
    TRY(readback_wait(&r->totals));
    const score *totals = r->totals.seen;
    r->late.loss = totals->last_loss;
    r->late.grad_norm = totals->grad_norm;
    if (r->keeps)
        keep_step(r, &r->late);
    if (r->shows)
        progress_step(r->progress, &r->late);
    return STATUS_OK;
}

status run_records_flush(run_records *r)
{
    TRY(run_records_say(r));
    metrics_flush(r->metrics);
    return STATUS_OK;
}

void run_records_test(run_records *r, const test_facts *f)
{
    keep_test(r, f);
    progress_test(r->progress, f);
}

void run_records_epoch(run_records *r, const epoch_facts *f)
{
    keep_epoch(r, f);
    progress_epoch(r->progress, f);
    count_epoch(r, f);
}

void run_records_checkpoint(run_records *r, status st)
{
    if (st == STATUS_OK)
        return;
    LOG_E("checkpoint not written: %s", status_text());
    r->result->failed_checkpoints++;
}
