#include "app/demo/demo.h"

#include "app/common/json_value.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/text.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    TIMEOUT_MS = 30000,
    GRACE_MS = 1,
    QUOTE_COLUMNS = 76,
    INDENT_MOST = 20,
    DEEPER = 2,
    TRACE_BYTES = 64 << 20
};

/* The program and the words of `line` after its name. It is on its own, whoever has started this
 * process. A training's files go to the folder. */
static void read_words(const char *line, const char *folder, bench_words *out)
{
    line += strcspn(line, " ");
    line += strspn(line, " ");
    size_t name = strcspn(line, " ");
    bench_words_split(out, "/proc/self/exe %.*s --launcher=none%s", (int)name, line, line + name);
    if (out->n > 1 && strcmp(out->words[1], "train") == 0) {
        bench_words_add(out, "--run-dir=%s/run", folder);
        bench_words_add(out, "--log-dir=%s/log", folder);
    }
}

/* Takes `words` out of the text, and puts `other` there, which is not longer. */
static void say_instead(char *text, const char *words, const char *other)
{
    size_t length = strlen(words), put = strlen(other);
    for (char *at = text; (at = strstr(at, words)) != NULL; at += put) {
        memcpy(at, other, put);
        memmove(at + put, at + length, strlen(at + length) + 1);
    }
}

static status watch(demo_child *out)
{
    bench_words words = {.n = 0};
    bench_child *place = &out->place;
    subprocess_end end;
    int64_t start_ns = clock_now_ns();
    read_words(out->line, place->folder, &words);
    if (words.overflow)
        return FAIL(STATUS_INVALID, "%s: too many words", out->line);
    TRY(subprocess_watch(&(subprocess){.argv = words.words,
                                       .env = place->env,
                                       .timeout_ms = place->timeout_ms,
                                       .grace_ms = GRACE_MS,
                                       .signals = &place->signals},
                         &end));
    out->elapsed_s = clock_seconds(clock_now_ns() - start_ns);
    out->exit_code = WIFSIGNALED(end.wait_status) ? 128 + WTERMSIG(end.wait_status)
                                                  : WEXITSTATUS(end.wait_status);
    out->out = end.out;
    out->err = end.err;
    say_instead(out->err, "/proc/self/exe", "mnist_ddp"); /* as its line is shown */
    say_instead(out->err, " --launcher=none", "");
    return STATUS_OK;
}

static void forget(demo_child *child)
{
    free(child->out);
    free(child->err);
    json_decref(child->result);
    json_decref(child->trace);
    child->out = child->err = NULL;
    child->result = child->trace = NULL;
}

/* bench_child_close; then a signal that came since bench_child_open ends this process, as it would
 * have. */
static void close_place(bench_child *place)
{
    status_kept cause;
    if (place->folder[0] == '\0')
        return;
    status_keep(&cause);
    bench_child_release_signals(place);
    int stop = place->signals.first;
    bench_child_close(place);
    if (stop != 0)
        raise(stop);
    status_restore(&cause);
}

void demo_child_close(demo *d)
{
    forget(&d->child);
    close_place(&d->child.place);
}

status demo_child_run(demo *d, const char *words, ...)
{
    demo_child *child = &d->child;
    char own[DEMO_LINE_BYTES - sizeof "mnist_ddp "];
    va_list args;
    va_start(args, words);
    vsnprintf(own, sizeof own, words, args);
    va_end(args);
    snprintf(child->line, sizeof child->line, "mnist_ddp %s", own);
    forget(child);
    TRY(bench_child_open(TIMEOUT_MS, &child->place));
    status st = watch(child);
    close_place(&child->place);
    return status_context(st, "%s", child->line);
}

static bool is_wanted(const char *line, const char *const *starts)
{
    line += strspn(line, " ");
    if (starts == NULL)
        return *line != '\0' && *line != '\n';
    for (; *starts != NULL; starts++)
        if (strncmp(line, *starts, strlen(*starts)) == 0)
            return true;
    return false;
}

static void tell(demo *d, const char *text, int length, int indent)
{
    char row[QUOTE_COLUMNS + 1];
    snprintf(row, sizeof row, "%*s%.*s", indent, "", length, text);
    demo_cells(d, json_pack("[o]", json_value_text(row)));
}

/* One line, broken between words; what follows stands deeper. */
static void quote_line(demo *d, const char *line, int length)
{
    int indent = (int)strspn(line, " ");
    line += indent, length -= indent;
    indent = indent < INDENT_MOST ? indent : INDENT_MOST;
    for (int deeper = 0; length > 0; deeper = DEEPER) {
        int room = QUOTE_COLUMNS - indent - deeper, cut = length;
        if (length > room)
            for (cut = room; cut > 0 && line[cut] != ' ';)
                cut--;
        if (cut == 0) /* one long word */
            cut = room;
        tell(d, line, cut, indent + deeper);
        line += cut, length -= cut;
        while (length > 0 && *line == ' ')
            line++, length--;
    }
}

void demo_child_quote(demo *d, const char *text, const char *const *starts)
{
    bool gap = false;
    for (const char *next; *text != '\0'; text = next) {
        size_t length = strcspn(text, "\n");
        next = text + length + (text[length] != '\0');
        if (!is_wanted(text, starts)) {
            gap = length > 0;
            continue;
        }
        if (gap)
            tell(d, "...", 3, 0);
        gap = false;
        quote_line(d, text, (int)length);
    }
}

void training_run_path(const demo *d, const char *name, char out[FILE_PATH_BYTES])
{
    snprintf(out, FILE_PATH_BYTES, "%.*s/%s", FILE_PATH_BYTES - 64, d->child.place.folder, name);
}

status training_run_do(demo *d, const char *flags, ...)
{
    const options *o = d->opts;
    demo_child *t = &d->child;
    char path[FILE_PATH_BYTES], own[DEMO_LINE_BYTES];
    bench_words w = {.n = 0};
    va_list args;
    if (t->place.folder[0] == '\0')
        TRY(bench_child_open(o->timeout * 1000, &t->place));
    va_start(args, flags);
    vsnprintf(own, sizeof own, flags, args);
    va_end(args);
    char *rest = strstr(own, " -- ");
    *rest = '\0';
    snprintf(t->line, sizeof t->line, "mnist_ddp train --model=%s %.400s", o->model, own);
    /* on its own, whoever has started this process */
    bench_words_split(&w,
                      "/proc/self/exe train --launcher=none --json --quiet --device=cpu "
                      "--threads=1 --eval-every=0 --seed=%lld --timeout=%lld",
                      (long long)o->seed, (long long)o->timeout);
    bench_words_add(&w, "--run-dir=%s/run", t->place.folder);
    bench_words_add(&w, "--trace=%s/trace.json", t->place.folder);
    if (o->data_dir != NULL)
        bench_words_add(&w, "--data-dir=%s", o->data_dir);
    bench_words_split(&w, "--model=%s %s %s", o->model, own, rest + strlen(" -- "));
    forget(t);
    TRY(status_context(bench_child_run(&t->place, &w, &t->result), "%s", t->line));
    training_run_path(d, "trace.json", path);
    return json_text_read(path, TRACE_BYTES, &t->trace);
}

double training_run_number(const demo *d, const char *object, const char *key)
{
    const json_t *from =
        object != NULL ? json_object_get(d->child.result, object) : d->child.result;
    const json_t *value = json_object_get(from, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

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

size_t training_run_spans(const demo *d, int64_t step, step_span *out, size_t max)
{
    const json_t *events = json_object_get(d->child.trace, "traceEvents");
    const json_t *whole = find_step(events, step);
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
