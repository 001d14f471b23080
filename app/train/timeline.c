#include "app/train/timeline.h"

#include "base/clock.h"
#include "kernels/ops.h"
#include "kernels/stream_trace.h"

void timeline_open(device *dev, rank_page *page, timeline *out)
{
    timeline_clock clock = dev->stream == NULL ? TIMELINE_OF_HOST : TIMELINE_OF_EPOCHS;
    *out = (timeline){.dev = dev, .page = page, .clock = clock, .now = MOMENT_START};
}

void timeline_close(timeline *t)
{
    skew_close(&t->late);
    *t = (timeline){0};
}

status timeline_time_stream(timeline *t)
{
    if (t->dev->stream_trace == NULL)
        TRY(stream_trace_open(t->dev, NULL, NULL, &t->dev->stream_trace));
    t->clock = TIMELINE_OF_STREAM;
    return STATUS_OK;
}

status timeline_note_meetings(timeline *t, process_group *group, int meetings)
{
    return skew_open(group, t->clock == TIMELINE_OF_HOST, meetings, &t->late);
}

/* The moment so far ends. */
static void count(timeline *t, moment next)
{
    const moment_facts *facts = moment_about(t->now);
    int64_t now_ns = clock_now_ns();
    if (t->in_epoch)
        t->ns[facts->phase] += now_ns - t->since_ns;
    if (t->in_epoch && facts->meets)
        skew_note(&t->late, facts->phase, t->since_ns, now_ns);
    t->now = next;
    t->since_ns = now_ns;
}

void timeline_begin_epoch(timeline *t)
{
    t->in_epoch = true;
    t->now = MOMENT_LOAD;
    t->since_ns = clock_now_ns();
}

status timeline_begin_steps(timeline *t)
{
    if (t->clock != TIMELINE_OF_HOST)
        count(t, MOMENT_ACCELERATOR);
    return timeline_enter(t, MOMENT_BETWEEN);
}

status timeline_end_epoch(timeline *t)
{
    if (t->clock != TIMELINE_OF_STREAM)
        count(t, MOMENT_BETWEEN);
    t->in_epoch = false;
    TRY(device_span_switch(t->dev, NULL, NULL));
    return t->clock == TIMELINE_OF_STREAM ? stream_trace_settle(t->dev->stream_trace) : STATUS_OK;
}

status timeline_settle_epoch(timeline *t, process_group *group)
{
    return skew_settle(&t->late, group, t->ns);
}

status timeline_enter(timeline *t, moment m)
{
    const moment_facts *facts = moment_about(m);
    bool on_stream = t->clock == TIMELINE_OF_STREAM && t->in_epoch;
    if (t->clock == TIMELINE_OF_HOST)
        count(t, m);
    rank_page_enter(t->page, m);
    return device_span_switch(t->dev, facts->name, on_stream ? &t->ns[facts->phase] : NULL);
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
