#include "app/report/trace_picture.h"

#include "app/report/report.h"
#include "base/json_text.h"

#include <string.h>

enum {
    TRACE_BYTES = 1 << 30,
    STEP_FIRST = 4, /* the first ones are slower: of those that the report shows */
    STEPS_SHOWN = 3,
};

bool trace_picture_span_read(json_t *event, trace_picture_span *out)
{
    const char *kind;
    *out = (trace_picture_span){.name = "", .bytes = -1, .step = -1};
    if (json_unpack(event, "{s:s, s?s, s?i, s?i, s?F, s?F}", "ph", &kind, "name", &out->name, "pid",
                    &out->rank, "tid", &out->thread, "ts", &out->begin_us, "dur",
                    &out->length_us) != 0 ||
        strcmp(kind, "X") != 0)
        return false;
    json_unpack(json_object_get(event, "args"), "{s?s, s?I, s?I}", "parameters", &out->parameters,
                "bytes", &out->bytes, "step", &out->step);
    return true;
}

static size_t count_spans(const json_t *events)
{
    json_t *event;
    trace_picture_span span;
    size_t i, n = 0;
    json_array_foreach(events, i, event) n +=
        trace_picture_span_read(event, &span) && span.length_us > 0;
    return n;
}

status trace_picture_read(const char *trace_path, json_t **events)
{
    json_t *trace = NULL;
    TRY(json_text_read(trace_path, TRACE_BYTES, &trace));
    *events = json_incref(json_object_get(trace, "traceEvents"));
    json_decref(trace);
    if (count_spans(*events) > 0)
        return STATUS_OK;
    status st = FAIL(STATUS_INVALID, json_is_array(*events) ? "%s has no spans" : "%s is no trace",
                     trace_path);
    json_decref(*events);
    *events = NULL;
    return st;
}

static void print_trace(const json_t *data, FILE *out)
{
    fprintf(out, "A trace with %zu spans, which this page draws with JavaScript.\n",
            count_spans(json_object_get(data, "trace")));
}

status trace_picture_page_write(const char *trace_path, const char *page_path)
{
    json_t *events = NULL;
    TRY(trace_picture_read(trace_path, &events));
    json_t *data = json_pack("{s:s, s:s, s:o}", "kind", "trace", "title",
                             "What every rank did when", "trace", events);
    status st = page_write(page_path, data, print_trace);
    json_decref(data);
    return st;
}

/* From the beginning of one step of rank 0 to the end of a later one. */
static void find_steps(const json_t *events, double *from_us, double *to_us)
{
    json_t *event;
    trace_picture_span span;
    size_t i;
    int step = 0;
    double begins[STEPS_SHOWN] = {0};
    *to_us = 0;
    json_array_foreach(events, i, event)
    {
        if (!trace_picture_span_read(event, &span) || strcmp(span.name, "step") != 0 ||
            span.rank > 0 || step >= STEP_FIRST + STEPS_SHOWN - 1)
            continue;
        begins[step % STEPS_SHOWN] = span.begin_us;
        *to_us = span.begin_us + span.length_us;
        step++;
    }
    *from_us = begins[step >= STEPS_SHOWN ? step % STEPS_SHOWN : 0];
}

status trace_picture_write_steps(const char *trace_path, const char *path)
{
    json_t *events = NULL, *kept = json_array(), *event;
    trace_picture_span span;
    double from_us, to_us;
    size_t i;
    status st = trace_picture_read(trace_path, &events);
    find_steps(events, &from_us, &to_us);
    json_array_foreach(
        events, i, event) if (!trace_picture_span_read(event, &span) ||
                              (span.begin_us < to_us && span.begin_us + span.length_us > from_us))
        json_array_append(kept, event);
    json_t *trace = json_pack("{s:o}", "traceEvents", kept);
    if (st == STATUS_OK)
        st = json_text_save(trace, JSON_COMPACT | JSON_REAL_PRECISION(15), path);
    json_decref(trace);
    json_decref(events);
    return st;
}
