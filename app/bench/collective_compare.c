/* mnist_ddp bench all-reduce --backend=shm,gloo --peer=torch,mpi: the same operation on several
 * backends, and beside PyTorch and plain MPI, one after the other. Each is a run of its own whose
 * last line is `--json`'s.
 */
#include "app/bench/bench.h"
#include "app/bench/collective_bench.h"
#include "app/bench/collective_table.h"
#include "app/bench/commands.h"
#include "app/common/exit_codes.h"
#include "app/report/report.h"
#include "app/report/table.h"
#include "base/log.h"
#include "dist/process_group/backend_choice.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SYSTEMS = 8, NAME_BYTES = 32, CHILD_TIMEOUT_MS = 900000, DIGITS = 6 };

/* What is measured: a backend of ours or a peer. */
typedef struct contender {
    char name[NAME_BYTES]; /* "shm", "torch gloo", "Open MPI" */
    bench_words words;
    json_t *rows; /* NULL: not measured */
} contender;

typedef struct comparison {
    const options *opts;
    collective_kind kind;
    contender systems[SYSTEMS];
    int n;
    int world_size; /* as ours says */
    bench_child place;
    json_t *document;
    char folder[FILE_PATH_BYTES];
    char mpi_program[PATH_MAX + 32]; /* compiled, in that folder; "": none */
} comparison;

static const char *const WAYS[] = {"in_place", "out_of_place"};
static const char *const WAY_WORDS[] = {"in place", "out of place"};

bool collective_compares(const options *opts)
{
    return collective_is_meant(opts) && (strchr(opts->backend, ',') != NULL || opts->out != NULL ||
                                         strcmp(opts->bench.peer, "none") != 0);
}

static status add_system(comparison *c, const char *name, size_t length, contender **out)
{
    if (c->n == SYSTEMS || length == 0 || length >= NAME_BYTES)
        return FAIL(STATUS_INVALID, "--backend=%s: name one to %d backends, as in shm,gloo",
                    c->opts->backend, SYSTEMS - 2);
    *out = &c->systems[c->n++];
    snprintf((*out)->name, NAME_BYTES, "%.*s", (int)length, name);
    return STATUS_OK;
}

/* What all of ours are given alike. */
static void add_sizes(const options *o, bench_words *out)
{
    bench_words_add(out, "--minbytes=%s", o->bench.minbytes);
    bench_words_add(out, "--maxbytes=%s", o->bench.maxbytes);
    bench_words_add(out, "--stepfactor=%g", o->bench.stepfactor);
    bench_words_add(out, "--iters=%lld", (long long)o->bench.iters);
    bench_words_add(out, "--warmup-iters=%lld", (long long)o->bench.warmup_iters);
    bench_words_add(out, "--check=%lld", (long long)o->bench.check_results);
    bench_words_add(out, "--datatype=%s", o->bench.datatype);
    bench_words_add(out, "--redop=%s", o->bench.redop);
    bench_words_add(out, "--root=%lld", (long long)o->bench.root);
}

static void make_ours(const options *o, const char *backend, bench_words *out)
{
    bench_words_add(out, "/proc/self/exe");
    bench_words_add(out, "bench");
    bench_words_add(out, "%s", o->benchmark);
    bench_words_add(out, "--backend=%s", backend);
    bench_words_add(out, "--launcher=%s", o->launcher);
    if (o->nproc_per_node != NULL)
        bench_words_add(out, "--nproc-per-node=%s", o->nproc_per_node);
    add_sizes(o, out);
    bench_words_add(out, "--device=%s", o->device);
    bench_words_add(out, "--bind-to=%s", o->bind_to);
    if (o->nccl_nvls)
        bench_words_add(out, "--nccl-nvls");
    bench_words_add(out, "--timeout=%lld", (long long)o->timeout);
    bench_words_add(out, "--json");
    bench_words_add(out, "--quiet");
}

static status add_ours(comparison *c)
{
    contender *made = NULL;
    for (const char *name = c->opts->backend; name != NULL;) {
        const char *end = strchr(name, ',');
        TRY(add_system(c, name, end != NULL ? (size_t)(end - name) : strlen(name), &made));
        TRY(backend_choice_check(made->name));
        make_ours(c->opts, made->name, &made->words);
        name = end != NULL ? end + 1 : NULL;
    }
    return STATUS_OK;
}

/* What a peer's script is given: the sizes that ours had. */
static void add_measured_sizes(const comparison *c, bench_words *out)
{
    size_t i;
    json_t *row;
    json_array_foreach(c->systems[0].rows, i, row)
        bench_words_add(out, "%lld", (long long)json_integer_value(json_object_get(row, "bytes")));
}

static void add_peer_words(const comparison *c, bench_words *out)
{
    const options *o = c->opts;
    bench_words_add(out, "%s", collective_kind_name(c->kind));
    bench_words_add(out, "%s", o->bench.datatype);
    bench_words_add(out, "%s", o->bench.redop);
    bench_words_add(out, "%lld", (long long)o->bench.root);
    bench_words_add(out, "%lld", (long long)o->bench.iters);
    bench_words_add(out, "%lld", (long long)o->bench.warmup_iters);
    add_measured_sizes(c, out);
}

static status add_torch(comparison *c)
{
    char script[FILE_PATH_BYTES];
    contender *made = NULL;
    TRY(bench_find_peer("torch_collective.py", script));
    TRY(add_system(c, "torch gloo", strlen("torch gloo"), &made));
    bench_words_add(&made->words, "%s", bench_peer_python(c->opts));
    bench_words_add(&made->words, "-m");
    bench_words_add(&made->words, "torch.distributed.run");
    bench_words_add(&made->words, "--standalone");
    bench_words_add(&made->words, "--nproc_per_node=%d", c->world_size);
    bench_words_add(&made->words, "%s", script);
    add_peer_words(c, &made->words);
    return STATUS_OK;
}

/* Compiled first, into the folder of the figures. */
static status add_mpi(comparison *c)
{
    char source[FILE_PATH_BYTES], folder[PATH_MAX];
    contender *made = NULL;
    bench_words compile = {.n = 0};
    json_t *said = NULL;
    TRY(bench_find_peer("mpi_collective.c", source));
    if (realpath(c->folder, folder) == NULL)
        return FAIL(STATUS_IO, "%s: %s", c->folder, strerror(errno));
    snprintf(c->mpi_program, sizeof c->mpi_program, "%s/mpi_collective", folder);
    bench_words_add(&compile, "sh");
    bench_words_add(&compile, "-c");
    bench_words_add(&compile, "mpicc -O2 -o \"$1\" \"$2\" && echo '{}'");
    bench_words_add(&compile, "mpicc");
    bench_words_add(&compile, "%s", c->mpi_program);
    bench_words_add(&compile, "%s", source);
    status st = bench_child_run(&c->place, &compile, &said);
    json_decref(said);
    if (st != STATUS_OK)
        return status_context(st, "--peer=mpi: mpicc (Debian: libopenmpi-dev)");
    TRY(add_system(c, "Open MPI", strlen("Open MPI"), &made));
    bench_words_add(&made->words, "mpirun");
    bench_words_add(&made->words, "--allow-run-as-root");
    bench_words_add(&made->words, "--oversubscribe");
    bench_words_add(&made->words, "-np");
    bench_words_add(&made->words, "%d", c->world_size);
    bench_words_add(&made->words, "%s", c->mpi_program);
    add_peer_words(c, &made->words);
    return STATUS_OK;
}

/* What cannot be measured here is left out, with a note. */
static void leave_out(comparison *c, const char *name, status st)
{
    if (st == STATUS_OK)
        return;
    LOG_W("%s is left out: %s", name, status_text());
    report_say(c->document, REPORT_NOTES, "%s is left out: %s", name, status_text());
}

static collective_time time_of(const json_t *way)
{
    const json_t *wrong = json_object_get(way, "wrong");
    return (collective_time){.exists = json_is_object(way),
                             .mean_s = json_number_value(json_object_get(way, "time_us")) * 1e-6,
                             .wrong =
                                 json_is_integer(wrong) ? (int64_t)json_integer_value(wrong) : -1};
}

/* What one of ours has said, as it would have printed it; it goes by what was chosen from then on.
 */
static void show_ours(comparison *c, contender *system, const json_t *said)
{
    const options *o = c->opts;
    const char *backend = json_string_value(json_object_get(said, "backend"));
    const char *device_name = json_string_value(json_object_get(said, "device"));
    size_t i;
    json_t *row;
    if (backend == NULL || device_name == NULL)
        return;
    snprintf(system->name, NAME_BYTES, "%s", backend);
    collective_table table = {.out = !o->json    ? stdout
                                     : !o->quiet ? stderr
                                                 : NULL,
                              .world_size = c->world_size};
    table.what = (collective_case){.kind = c->kind, .root = (int)o->bench.root};
    (void)collective_type_find(o->bench.datatype, &table.what.type);
    (void)collective_op_find(o->bench.redop, &table.what.op);
    collective_table_head(&table, &(collective_setup){.opts = o, backend, device_name});
    json_array_foreach(system->rows, i, row) collective_table_add(
        &table,
        &(collective_row){.size_bytes = (size_t)json_integer_value(json_object_get(row, "bytes")),
                          .count = (size_t)json_integer_value(json_object_get(row, "count")),
                          .out_of_place = time_of(json_object_get(row, "out_of_place")),
                          .in_place = time_of(json_object_get(row, "in_place"))});
    collective_table_end(&table);
}

static void measure_one(comparison *c, contender *system)
{
    json_t *said = NULL;
    LOG_V("measuring %s", system->name);
    status st = bench_child_run(&c->place, &system->words, &said);
    if (st == STATUS_OK) {
        system->rows = json_incref(json_object_get(said, "rows"));
        if (c->world_size == 0)
            c->world_size = (int)json_integer_value(json_object_get(said, "world"));
    }
    if (st == STATUS_OK && !json_is_array(system->rows))
        st = FAIL(STATUS_PEER, "it printed no rows");
    if (st != STATUS_OK)
        system->rows = NULL;
    else
        show_ours(c, system, said);
    leave_out(c, system->name, st);
    json_decref(said);
}

static status measure_all(comparison *c)
{
    for (int i = 0; i < c->n && !bench_child_stopped(&c->place); i++)
        measure_one(c, &c->systems[i]);
    if (c->systems[0].rows == NULL)
        return FAIL(STATUS_PEER, "%s could not be measured, and the rest is compared with it",
                    c->systems[0].name);
    int ours = c->n;
    if (strstr(c->opts->bench.peer, "mpi") != NULL)
        leave_out(c, "Open MPI", add_mpi(c));
    if (strstr(c->opts->bench.peer, "torch") != NULL)
        leave_out(c, "torch gloo", add_torch(c));
    for (int i = ours; i < c->n && !bench_child_stopped(&c->place); i++)
        measure_one(c, &c->systems[i]);
    return STATUS_OK;
}

/* The median of a size in us; NaN: not measured. */
static double median_us(const contender *system, size_t row, int way)
{
    const json_t *time = json_object_get(json_array_get(system->rows, row), WAYS[way]);
    const json_t *median = json_object_get(time, "median_us");
    if (median == NULL)
        median = json_object_get(time, "time_us");
    return json_is_number(median) ? json_number_value(median) : (double)NAN;
}

static double bytes_of(const contender *system, size_t row)
{
    return json_number_value(json_object_get(json_array_get(system->rows, row), "bytes"));
}

static bool has_way(const comparison *c, int way)
{
    return isfinite(median_us(&c->systems[0], 0, way));
}

/* Times of all, and how many times that of the first the others take. */
static void add_table(comparison *c, int way)
{
    char title[128], words[SYSTEMS * 2][NAME_BYTES * 2];
    const char *columns[SYSTEMS * 2 + 2] = {"bytes"};
    int n = 1;
    for (int i = 0; i < c->n; i++) {
        snprintf(words[n], sizeof words[n], "%s us", c->systems[i].name);
        columns[n] = words[n];
        n++;
    }
    for (int i = 1; i < c->n; i++) {
        snprintf(words[n], sizeof words[n], "%s/%s", c->systems[i].name, c->systems[0].name);
        columns[n] = words[n];
        n++;
    }
    columns[n] = NULL;
    snprintf(title, sizeof title, "%s, %d ranks, %s: medians", c->opts->benchmark, c->world_size,
             WAY_WORDS[way]);
    json_t *table = report_table(c->document, title, columns);
    for (size_t row = 0; row < json_array_size(c->systems[0].rows); row++) {
        double first = median_us(&c->systems[0], row, way);
        table_row(table);
        table_cell(table, "%.0f", bytes_of(&c->systems[0], row));
        for (int i = 0; i < c->n; i++)
            table_number(table, median_us(&c->systems[i], row, way));
        for (int i = 1; i < c->n; i++)
            table_number(table, median_us(&c->systems[i], row, way) / first);
    }
}

static void add_plot(comparison *c, int way)
{
    char title[128], name[64];
    snprintf(title, sizeof title, "Bandwidth of %s by size, %d ranks, %s", c->opts->benchmark,
             c->world_size, WAY_WORDS[way]);
    snprintf(name, sizeof name, "%s-%s", c->opts->benchmark, WAYS[way]);
    if (!(collective_busbw(c->kind, 1, 1, c->world_size) > 0)) /* one rank: no link is used */
        return;
    json_t *plot = report_plot(c->document, name, title);
    json_object_update_new(plot, json_pack("{s:s, s:s, s:s, s:s}", "x", "bytes", "y", "busbw, GB/s",
                                           "x_axis", "log", "y_axis", "log"));
    for (int i = 0; i < c->n; i++) {
        if (c->systems[i].rows == NULL)
            continue;
        json_t *points = json_object_get(report_series(plot, c->systems[i].name), "points");
        for (size_t row = 0; row < json_array_size(c->systems[i].rows); row++) {
            double us = median_us(&c->systems[i], row, way), bytes = bytes_of(&c->systems[i], row);
            double busbw = collective_busbw(c->kind, (size_t)bytes, us * 1e-6, c->world_size);
            if (isfinite(us) && busbw > 0)
                json_array_append_new(points, json_pack("[f, o]", bytes, report_number(busbw, 6)));
        }
    }
}

static void add_figures(comparison *c)
{
    json_t *systems = json_array();
    for (int i = 0; i < c->n; i++) {
        char line[2048];
        json_t *object = json_object();
        bench_words_line(&c->systems[i].words, line, sizeof line);
        json_object_set_new(object, "name", json_string(c->systems[i].name));
        json_object_set_new(object, "command", json_string(line));
        json_object_set(object, "rows",
                        c->systems[i].rows != NULL ? c->systems[i].rows : json_null());
        json_array_append_new(systems, object);
    }
    json_object_set_new(c->document, "world", json_integer(c->world_size));
    json_object_set_new(c->document, "systems", systems);
    for (int way = 0; way < 2; way++)
        if (has_way(c, way)) {
            add_table(c, way);
            if (c->kind != COLLECTIVE_BARRIER)
                add_plot(c, way);
        }
}

static status run(comparison *c, int *exit_code)
{
    *exit_code = EXIT_CODE_USAGE;
    TRY(collective_check_flags(c->opts));
    if (c->opts->nnodes != NULL && strcmp(c->opts->nnodes, "1") != 0)
        return FAIL(STATUS_INVALID, "--nnodes=%s: backends and peers are compared on one node",
                    c->opts->nnodes);
    TRY(add_ours(c));
    *exit_code = EXIT_CODE_CHECKPOINT;
    TRY(bench_folder_make(c->opts, c->folder));
    *exit_code = EXIT_CODE_INTERNAL;
    TRY(bench_child_open(CHILD_TIMEOUT_MS, &c->place));
    bench_say_if_busy(c->document);
    TRY(measure_all(c));
    add_figures(c);
    *exit_code = EXIT_CODE_CHECKPOINT;
    TRY(bench_leave(c->opts, &c->place, c->folder, c->document));
    *exit_code = EXIT_SUCCESS;
    return STATUS_OK;
}

int collective_compare_command(const options *opts, int argc, char **argv)
{
    static comparison c; /* its command lines are long */
    int exit_code = EXIT_CODE_INTERNAL;
    c = (comparison){.opts = opts};
    (void)collective_bench_find(opts->benchmark, &c.kind);
    c.document = bench_document(opts, "An operation on several backends", argc, argv);
    status st = run(&c, &exit_code);
    if (st != STATUS_OK)
        exit_code = exit_code_failed(st, exit_code);
    if (c.place.folder[0] != '\0' && bench_child_stopped(&c.place))
        exit_code = 128 + c.place.signals.first;
    bench_child_close(&c.place);
    if (c.mpi_program[0] != '\0')
        unlink(c.mpi_program);
    for (int i = 0; i < c.n; i++)
        json_decref(c.systems[i].rows);
    json_decref(c.document);
    return exit_code;
}
