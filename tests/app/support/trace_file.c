#include "tests/app/support/trace_file.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum { TRACE_FILE_DEPTH = 16 };

json_t *trace_file_read(const char *path)
{
    json_error_t error;
    json_t *doc = json_load_file(path, 0, &error);
    ck_assert_msg(doc != NULL, "%s line %d: %s", path, error.line, error.text);
    ck_assert(json_is_array(json_object_get(doc, "traceEvents")));
    ck_assert(json_is_object(json_object_get(doc, "otherData")));
    return doc;
}

const char *trace_file_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    ck_assert_msg(text != NULL, "no %s", key);
    return text;
}

int trace_file_integer(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    ck_assert_msg(json_is_integer(value), "no %s", key);
    return (int)json_integer_value(value);
}

int64_t trace_file_ns(const json_t *event, const char *key)
{
    const json_t *value = json_object_get(event, key);
    ck_assert_msg(json_is_number(value), "no %s", key);
    return (int64_t)llround(json_number_value(value) * 1e3);
}

void trace_file_check(const json_t *doc)
{
    const json_t *events = json_object_get(doc, "traceEvents"), *event = NULL;
    int64_t ends[TRACE_FILE_DEPTH], last = INT64_MIN;
    int depth = 0, pid = -1, tid = -1;
    size_t i = 0;
    json_array_foreach(events, i, event)
    {
        const char *kind = trace_file_text(event, "ph"), *name = trace_file_text(event, "name");
        ck_assert(json_is_object(json_object_get(event, "args")));
        if (strcmp(kind, "X") != 0) {
            ck_assert_str_eq(kind, "M");
            continue;
        }
        int64_t begin = trace_file_ns(event, "ts"), end = begin + trace_file_ns(event, "dur");
        ck_assert_int_ge(begin, 0);
        ck_assert_int_le(begin, end);
        if (trace_file_integer(event, "pid") != pid || trace_file_integer(event, "tid") != tid) {
            pid = trace_file_integer(event, "pid");
            tid = trace_file_integer(event, "tid");
            depth = 0;
            last = INT64_MIN;
        }
        ck_assert_msg(begin >= last, "rank %d, thread %d: %s is out of order", pid, tid, name);
        last = begin;
        while (depth > 0 && ends[depth - 1] <= begin && end > ends[depth - 1])
            depth--;
        ck_assert_msg(depth == 0 || end <= ends[depth - 1],
                      "rank %d, thread %d: %s at %lld is not within the span around it", pid, tid,
                      name, (long long)begin);
        ck_assert_int_lt(depth, TRACE_FILE_DEPTH);
        ends[depth++] = end;
    }
}

int trace_file_thread(const json_t *doc, int rank, const char *name)
{
    const json_t *event = NULL;
    size_t i = 0;
    json_array_foreach(json_object_get(doc, "traceEvents"), i,
                       event) if (strcmp(trace_file_text(event, "name"), "thread_name") == 0 &&
                                  trace_file_integer(event, "pid") == rank &&
                                  strncmp(trace_file_text(json_object_get(event, "args"), "name"),
                                          name, strlen(name)) ==
                                      0) return trace_file_integer(event, "tid");
    return -1;
}

bool trace_file_is(const json_t *event, int rank, int compute, const char *name)
{
    return strcmp(trace_file_text(event, "ph"), "X") == 0 &&
           trace_file_integer(event, "pid") == rank &&
           (compute < 0 || trace_file_integer(event, "tid") < compute) &&
           strcmp(trace_file_text(event, "name"), name) == 0;
}

int trace_file_count(const json_t *doc, int rank, const char *name, int64_t *ns)
{
    const json_t *event = NULL;
    size_t i = 0;
    int n = 0, compute = trace_file_thread(doc, rank, "compute");
    json_array_foreach(json_object_get(doc, "traceEvents"), i, event)
    {
        if (!trace_file_is(event, rank, compute, name))
            continue;
        n++;
        if (ns != NULL)
            *ns += trace_file_ns(event, "dur");
    }
    return n;
}

int trace_file_unfinished(const json_t *doc, int rank, const char *name)
{
    const json_t *event = NULL;
    size_t i = 0;
    int n = 0, compute = trace_file_thread(doc, rank, "compute");
    json_array_foreach(
        json_object_get(doc, "traceEvents"), i,
        event) if (trace_file_is(event, rank, compute, name) &&
                   json_is_true(json_object_get(json_object_get(event, "args"), "unfinished"))) n++;
    return n;
}

unsigned trace_file_ranks(const json_t *doc)
{
    const json_t *rank = NULL;
    size_t i = 0;
    unsigned ranks = 0;
    json_array_foreach(json_object_get(json_object_get(doc, "otherData"), "ranks"), i, rank)
        ranks |= 1u << trace_file_integer(rank, "rank");
    return ranks;
}

const char *trace_file_ending(const json_t *doc)
{
    return trace_file_text(json_object_get(doc, "otherData"), "run");
}

json_t *trace_file_argument(const json_t *doc, int rank, const char *name, const char *key)
{
    const json_t *event = NULL;
    size_t i = 0;
    int compute = trace_file_thread(doc, rank, "compute");
    json_array_foreach(
        json_object_get(doc, "traceEvents"), i,
        event) if (trace_file_is(event, rank, compute,
                                 name)) return json_object_get(json_object_get(event, "args"), key);
    return NULL;
}
