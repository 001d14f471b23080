#include "app/demo/step_spans.h"

#include <stdbool.h>
#include <string.h>

static const char *text_of(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text != NULL ? text : "";
}

static json_int_t integer_of(const json_t *event, const char *key)
{
    return json_integer_value(json_object_get(event, key));
}

static double us_of(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static bool is_kind(const json_t *event, const char *kind)
{
    return strcmp(text_of(event, "ph"), kind) == 0 && integer_of(event, "pid") == 0;
}

static const char *lane_of(const json_t *events, json_int_t thread)
{
    size_t i;
    json_t *event;
    json_array_foreach(events, i,
                       event) if (is_kind(event, "M") && integer_of(event, "tid") == thread &&
                                  strcmp(text_of(event, "name"), "thread_name") ==
                                      0) return text_of(json_object_get(event, "args"), "name");
    return "";
}

static const json_t *find_step(const json_t *events, int64_t step)
{
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event) if (is_kind(event, "X") &&
                                             strcmp(text_of(event, "name"), "step") == 0 &&
                                             integer_of(json_object_get(event, "args"), "step") ==
                                                 step) return event;
    return NULL;
}

size_t step_spans_read(const json_t *trace, int64_t step, step_span *out, size_t max)
{
    const json_t *events = json_object_get(trace, "traceEvents"), *whole = find_step(events, step);
    size_t i, n = 0;
    json_t *event;
    if (whole == NULL)
        return 0;
    double begin_us = us_of(whole, "ts"), end_us = begin_us + us_of(whole, "dur");
    json_array_foreach(events, i, event)
    {
        double at_us = us_of(event, "ts");
        if (!is_kind(event, "X") || at_us < begin_us || at_us > end_us || n == max)
            continue;
        const json_t *args = json_object_get(event, "args");
        const json_t *bytes = json_object_get(args, "bytes");
        out[n++] = (step_span){
            .lane = lane_of(events, integer_of(event, "tid")),
            .name = text_of(event, "name"),
            .parameters = json_string_value(json_object_get(args, "parameters")),
            .bytes = json_is_integer(bytes) ? json_integer_value(bytes) : -1,
            .begin_ms = (at_us - begin_us) / 1000,
            .end_ms = (at_us + us_of(event, "dur") - begin_us) / 1000,
        };
    }
    return n;
}
