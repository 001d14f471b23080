#include "app/train/timeline.h"

#include "app/trace/run_trace.h"
#include "base/clock.h"
#include "base/memory.h"
#include "kernels/stream_trace.h"

#include <stdlib.h>

/* *fits: left as it is, or false. */
static status compare_clocks(process_group *group, skew_clock *out, bool *fits)
{
    trace_clock clock = {0};
    bool found = true;
    if (!process_group_is_on_one_host(group))
        TRY(trace_clock_compare(group, &clock, &found));
    *out = (skew_clock){clock_now_ns(), clock.offset_ns};
    *fits = *fits && found;
    return STATUS_OK;
}

static int64_t offset_at(const skew_clock *before, const skew_clock *after, int64_t at_ns)
{
    double share = (double)(at_ns - before->at_ns) / (double)(after->at_ns - before->at_ns + 1);
    return before->offset_ns + (int64_t)((double)(after->offset_ns - before->offset_ns) * share);
}

status skew_open(process_group *group, bool can, int waits, skew *out)
{
    skew s = {.room = waits};
    TRY(compare_clocks(group, &s.before, &can));
    int64_t all_can = can;
    TRY(process_group_all_reduce(group, &all_can, 1, DTYPE_I64, REDUCE_MIN, NULL));
    if (all_can == 0)
        return STATUS_OK;
    TRY(memory_alloc(sizeof *s.waits * (size_t)waits, (void **)&s.waits));
    status st = memory_alloc(sizeof *s.latest * ((size_t)waits + 1), (void **)&s.latest);
    if (st != STATUS_OK) {
        free(s.waits);
        return st;
    }
    s.known = true;
    *out = s;
    return STATUS_OK;
}

void skew_close(skew *s)
{
    free(s->waits);
    free(s->latest);
    *s = (skew){0};
}

void skew_note(skew *s, moment phase, int64_t came_ns, int64_t left_ns)
{
    if (s->known && s->n < s->room)
        s->waits[s->n++] = (skew_wait){phase, came_ns, left_ns};
}

status skew_settle(skew *s, process_group *group, int64_t *ns)
{
    skew_clock after;
    bool fits = true;
    if (!s->known)
        return STATUS_OK;
    TRY(compare_clocks(group, &after, &fits));
    for (int i = 0; i < s->n; i++)
        s->latest[i] = s->waits[i].came_ns + offset_at(&s->before, &after, s->waits[i].came_ns);
    s->latest[s->n] = !fits;
    TRY(process_group_all_reduce(group, s->latest, (size_t)s->n + 1, DTYPE_I64, REDUCE_MAX, NULL));
    s->known = s->latest[s->n] == 0;
    for (int i = 0; i < s->n && s->known; i++) {
        const skew_wait *m = &s->waits[i];
        int64_t latest_ns = s->latest[i] - offset_at(&s->before, &after, m->came_ns);
        int64_t until_ns = latest_ns < m->left_ns ? latest_ns : m->left_ns;
        ns[m->phase] -= until_ns - m->came_ns;
        ns[MOMENT_WAITING] += until_ns - m->came_ns;
    }
    s->before = after;
    s->n = 0;
    return STATUS_OK;
}

void timeline_open(device *dev, rank_status *page, run_trace *spans, timeline *out)
{
    *out = (timeline){.dev = dev,
                      .page = page,
                      .trace = spans,
                      .clock = dev->stream == NULL ? TIMELINE_OF_HOST : TIMELINE_OF_EPOCHS,
                      .now = MOMENT_START};
}

void timeline_close(timeline *t)
{
    skew_close(&t->skew);
    *t = (timeline){0};
}

status timeline_time_stream(timeline *t)
{
    if (t->dev->stream_trace == NULL)
        TRY(stream_trace_open(t->dev, NULL, NULL, &t->dev->stream_trace));
    t->clock = TIMELINE_OF_STREAM;
    return STATUS_OK;
}

status timeline_measure_waiting(timeline *t, process_group *group, int waits)
{
    return skew_open(group, t->clock == TIMELINE_OF_HOST, waits, &t->skew);
}

/* By the host's clock the moment so far ends, and `next` begins. */
static void count(timeline *t, moment next)
{
    const moment_facts *facts = moment_about(t->now);
    int64_t now_ns = clock_now_ns();
    if (t->counts)
        t->ns[facts->phase] += now_ns - t->since_ns;
    if (t->counts && facts->meets)
        skew_note(&t->skew, facts->phase, t->since_ns, now_ns);
    t->now = next;
    t->since_ns = now_ns;
}

status timeline_enter(timeline *t, moment m)
{
    const moment_facts *facts = moment_about(m);
    bool on_stream = t->clock == TIMELINE_OF_STREAM && t->counts;
    if (t->clock == TIMELINE_OF_HOST)
        count(t, m);
    t->entered = m;
    rank_status_enter(t->page, m);
    TRY(device_span_switch(t->dev, facts->name, on_stream ? &t->ns[facts->phase] : NULL));
    if (t->slow_ms > 0 && (m == MOMENT_FORWARD || m == MOMENT_BACKWARD))
        clock_sleep_ms(t->slow_ms);
    return STATUS_OK;
}

void timeline_begin_epoch(timeline *t, int64_t epoch)
{
    trace_begin_numbered(t->trace->lane, "epoch", epoch + 1);
}

void timeline_end_epoch(timeline *t)
{
    trace_end(t->trace->lane);
}

void timeline_count_from_here(timeline *t)
{
    t->counts = true;
    t->now = MOMENT_LOAD;
    t->since_ns = clock_now_ns();
}

status timeline_begin_steps(timeline *t)
{
    if (t->clock != TIMELINE_OF_HOST)
        count(t, MOMENT_ACCELERATOR);
    return timeline_enter(t, MOMENT_BETWEEN);
}

status timeline_stop_counting(timeline *t)
{
    if (t->clock != TIMELINE_OF_STREAM)
        count(t, MOMENT_BETWEEN);
    t->counts = false;
    TRY(timeline_enter(t, MOMENT_BETWEEN));
    return t->clock == TIMELINE_OF_STREAM ? stream_trace_settle(t->dev->stream_trace) : STATUS_OK;
}

status timeline_settle_waiting(timeline *t, process_group *group)
{
    return skew_settle(&t->skew, group, t->ns);
}

status timeline_begin_step(timeline *t, int64_t epoch, int64_t step)
{
    run_trace_begin_step(t->trace, step);
    rank_status_step(t->page, epoch, step);
    return timeline_enter(t, MOMENT_LOAD);
}

void timeline_end_step(timeline *t)
{
    run_trace_end_step(t->trace);
}

void timeline_waited(timeline *t, moment phase, int64_t ns)
{
    if (t->clock != TIMELINE_OF_HOST)
        return;
    t->ns[phase] -= ns;
    t->ns[MOMENT_WAITING] += ns;
}

int64_t timeline_exposed_ns(const timeline *t)
{
    return t->ns[MOMENT_BROADCAST] + t->ns[MOMENT_SCATTER] + t->ns[MOMENT_GATHER] +
           t->ns[MOMENT_REDUCE];
}
