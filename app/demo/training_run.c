#include "app/demo/training_run.h"

#include "app/demo/demo_child.h"
#include "base/json_text.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TRACE_BYTES = 64 << 20 };

status training_run_open(const demo *d, training_run *out)
{
    out->d = d;
    return bench_child_open(d->opts->timeout * 1000, &out->place);
}

static void forget(training_run *t)
{
    json_decref(t->result);
    json_decref(t->trace);
    t->result = NULL;
    t->trace = NULL;
}

void training_run_close(training_run *t)
{
    forget(t);
    demo_child_close_place(&t->place);
}

void training_run_path(const training_run *t, const char *name, char out[FILE_PATH_BYTES])
{
    snprintf(out, FILE_PATH_BYTES, "%.*s/%s", FILE_PATH_BYTES - 64, t->place.folder, name);
}

void training_run_begin(training_run *t)
{
    const options *opts = t->d->opts;
    bench_words *w = &t->words;
    char path[FILE_PATH_BYTES];
    *w = (bench_words){.n = 0};
    bench_words_add(w, "/proc/self/exe");
    bench_words_add(w, "train");
    bench_words_add(w, "--launcher=none"); /* whoever has started this process */
    bench_words_add(w, "--json");
    bench_words_add(w, "--quiet");
    bench_words_add(w, "--device=cpu");
    bench_words_add(w, "--threads=1");
    bench_words_add(w, "--eval-every=0");
    bench_words_add(w, "--seed=%lld", (long long)opts->seed);
    bench_words_add(w, "--timeout=%lld", (long long)opts->timeout);
    training_run_path(t, "run", path);
    bench_words_add(w, "--run-dir=%s", path);
    training_run_path(t, "trace.json", path);
    bench_words_add(w, "--trace=%s", path);
    if (opts->data_dir != NULL)
        bench_words_add(w, "--data-dir=%s", opts->data_dir);
    t->own = w->n;
    bench_words_add(w, "--model=%s", opts->model);
}

status training_run_do(training_run *t)
{
    char path[FILE_PATH_BYTES], line[1024];
    forget(t);
    training_run_line(t, line, sizeof line);
    TRY(status_context(bench_child_run(&t->place, &t->words, &t->result), "%s", line));
    training_run_path(t, "trace.json", path);
    return json_text_read(path, TRACE_BYTES, &t->trace);
}

void training_run_line(const training_run *t, char *out, size_t size_bytes)
{
    char *words = shell_words_line(t->words.words + t->own);
    snprintf(out, size_bytes, "mnist_ddp train %s", words != NULL ? words : "");
    free(words);
}

double training_run_number(const training_run *t, const char *object, const char *key)
{
    const json_t *from = object != NULL ? json_object_get(t->result, object) : t->result;
    const json_t *value = json_object_get(from, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}
