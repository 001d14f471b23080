/* mnist_ddp bench all-reduce, broadcast, ...: as one rank of those that measure; and of several
 * backends, and beside PyTorch and plain MPI, one after the other, each a run of its own whose last
 * line is `--json`'s. What is said is nccl-tests' table, and the same as JSON. */
#include "app/bench/collective_bench.h"

#include "app/bench/bench.h"
#include "app/common/core_binding.h"
#include "app/common/debug_level.h"
#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/common/machine.h"
#include "app/common/version.h"
#include "app/options/options.h"
#include "app/report/report.h"
#include "base/log.h"
#include "dist/process_group/backend_choice.h"
#include "kernels/device_kind.h"
#include "kernels/ops.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define MOST 1099511627776.0 /* 2^40 */

typedef struct collective_table {
    FILE *out; /* where it is printed, line by line; NULL: nowhere */
    collective_case what;
    int world_size;
    json_t *rows; /* the owner of the table frees it with json_decref */
    /* over all rows so far */
    double busbw_sum;
    int ways; /* measured */
    int64_t wrong;
    bool checked; /* somebody has looked for those */
} collective_table;

/* What is measured, as the head says it. */
typedef struct collective_setup {
    const options *opts;
    const char *backend, *device_name; /* that were chosen */
    const char *emulation;             /* the device's; NULL: none */
    bool graph;                        /* the iterations are one */
} collective_setup;

/* The words of nccl-tests. */
static const char *const TYPE_WORDS[DTYPE_COUNT] = {
    [DTYPE_F32] = "float",     [DTYPE_F64] = "double", [DTYPE_I64] = "int64",
    [DTYPE_BF16] = "bfloat16", [DTYPE_F16] = "half",   [DTYPE_U8] = "uint8",
};

/* The type and the reduction of such words; false: there is none. */
static bool find_type(const char *word, dtype *out)
{
    for (int type = 0; type < DTYPE_COUNT; type++)
        if (strcmp(TYPE_WORDS[type], word) == 0) {
            *out = (dtype)type;
            return true;
        }
    return false;
}

static bool find_op(const char *word, reduce_op *out)
{
    for (int op = 0; op < REDUCE_OP_COUNT; op++)
        if (strcmp(reduce_op_name((reduce_op)op), word) == 0) {
            *out = (reduce_op)op;
            return true;
        }
    return false;
}

static void print_head(const collective_table *t, const collective_setup *setup)
{
    FILE *out = t->out;
    const options *o = setup->opts;
    if (out == NULL)
        return;
    fprintf(out,
            "# mnist_ddp %s, bench %s: %d rank%s, backend %s, device %s\n"
            "# sizes %s to %s, factor %g; %lld iterations after %lld of warm-up, %s; "
            "means over ranks\n",
            MNIST_DDP_VERSION, o->benchmark, t->world_size, t->world_size == 1 ? "" : "s",
            setup->backend, setup->device_name, o->bench.minbytes, o->bench.maxbytes,
            o->bench.stepfactor, (long long)o->bench.iters, (long long)o->bench.warmup_iters,
            setup->graph ? "in a CUDA graph" : "each waited for");
    if (setup->emulation != NULL)
        fprintf(out, "# NO GPU: %s\n", setup->emulation);
    fprintf(out, "#\n#%61s%28s\n", "out-of-place", "in-place");
    fprintf(out, "#%10s %10s %8s %5s %4s", "size", "count", "type", "redop", "root");
    for (int way = 0; way < 2; way++)
        fprintf(out, " %7s %6s %6s %6s", "time", "algbw", "busbw", "#wrong");
    fprintf(out, "\n#%10s %10s%20s", "(B)", "(elements)", "");
    fprintf(out, " %7s %6s %6s%7s", "(us)", "(GB/s)", "(GB/s)", "");
    fprintf(out, " %7s %6s %6s\n", "(us)", "(GB/s)", "(GB/s)");
    fflush(out);
}

static double busbw_of(const collective_table *t, const collective_row *row,
                       const collective_time *way)
{
    return collective_busbw(t->what.kind, row->size_bytes, way->mean_s, t->world_size);
}

static void print_way(const collective_table *t, const collective_row *row,
                      const collective_time *way)
{
    double us = way->mean_s * 1e6;
    if (!way->exists) {
        fprintf(t->out, " %7s %6s %6s %6s", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    /* two significant places at least, in the column's width */
    fprintf(t->out, " %7.*f", us < 100 ? 2 : us < 10000 ? 1 : 0, us);
    fprintf(t->out, " %6.2f %6.2f", collective_algbw(row->size_bytes, way->mean_s),
            busbw_of(t, row, way));
    if (way->wrong < 0)
        fprintf(t->out, " %6s", "N/A");
    else
        fprintf(t->out, " %6lld", (long long)way->wrong);
}

/* -1 if the operation has none, as nccl-tests writes it. */
static int root_of(const collective_table *t)
{
    return collective_has_root(t->what.kind) && t->what.kind != COLLECTIVE_SEND ? t->what.root : -1;
}

static const char *redop_of(const collective_table *t)
{
    return collective_reduces(t->what.kind) ? reduce_op_name(t->what.op) : "none";
}

static void print_row(const collective_table *t, const collective_row *row)
{
    fprintf(t->out, " %10zu %10zu %8s %5s %4d", row->size_bytes, row->count,
            TYPE_WORDS[t->what.type], redop_of(t), root_of(t));
    print_way(t, row, &row->out_of_place);
    print_way(t, row, &row->in_place);
    fputc('\n', t->out);
    fflush(t->out);
}

static json_t *way_json(const collective_table *t, const collective_row *row,
                        const collective_time *way)
{
    if (!way->exists)
        return json_null();
    json_t *object = json_object();
    json_object_set_new(object, "time_us", json_value_rounded(way->mean_s * 1e6, 3));
    if (way->least_s >= 0) {
        json_object_set_new(object, "median_us", json_value_rounded(way->median_s * 1e6, 3));
        json_object_set_new(object, "least_us", json_value_rounded(way->least_s * 1e6, 3));
    }
    json_object_set_new(object, "algbw",
                        json_value_rounded(collective_algbw(row->size_bytes, way->mean_s), 4));
    json_object_set_new(object, "busbw", json_value_rounded(busbw_of(t, row, way), 4));
    json_object_set_new(object, "wrong", way->wrong < 0 ? json_null() : json_integer(way->wrong));
    return object;
}

static void add_row(collective_table *t, const collective_row *row)
{
    const collective_time *ways[] = {&row->out_of_place, &row->in_place};
    if (t->out != NULL)
        print_row(t, row);
    for (int i = 0; i < 2; i++)
        if (ways[i]->exists) {
            t->busbw_sum += busbw_of(t, row, ways[i]);
            t->wrong += ways[i]->wrong > 0 ? ways[i]->wrong : 0;
            t->checked = t->checked || ways[i]->wrong >= 0;
            t->ways++;
        }
    json_t *object = json_pack("{s:I, s:I, s:s, s:s, s:i, s:o, s:o}", "bytes",
                               (json_int_t)row->size_bytes, "count", (json_int_t)row->count, "type",
                               TYPE_WORDS[t->what.type], "redop", redop_of(t), "root", root_of(t),
                               "out_of_place", way_json(t, row, &row->out_of_place), "in_place",
                               way_json(t, row, &row->in_place));
    json_array_append_new(t->rows, object);
}

/* Over all rows, both ways, in GB/s. */
static double mean_busbw(const collective_table *t)
{
    return t->ways > 0 ? t->busbw_sum / t->ways : 0;
}

static void print_end(const collective_table *t)
{
    if (t->out == NULL)
        return;
    if (t->checked)
        fprintf(t->out, "# Out of bounds values : %lld %s\n", (long long)t->wrong,
                t->wrong == 0 ? "OK" : "FAILED");
    else
        fprintf(t->out, "# Out of bounds values : N/A\n");
    /* Parsers of nccl-tests' output take the bandwidth for the line's last word. */
    fprintf(t->out, "# Avg bus bandwidth    : %g \n#\n# Collective test concluded: %s\n\n#\n",
            mean_busbw(t), collective_bench_name(t->what.kind));
    fflush(t->out);
}

/* What one rank has open. */
typedef struct meter {
    const options *opts;
    rendezvous_place place;
    collective_plan plan;
    rendezvous *rendezvous;
    device *dev;
    core_binding binding;
    process_group *group;
    collective_bench *bench;
    collective_table table; /* printed by rank 0 */
} meter;

/* The factor of a unit; 0: there is no such unit. */
static double unit(const char *text)
{
    static const char letters[] = "KMG";
    const char *found = *text != '\0' ? strchr(letters, toupper((unsigned char)*text)) : NULL;
    double factor = 1;
    if (found != NULL) {
        for (const char *letter = letters; letter <= found; letter++)
            factor *= 1024;
        text++;
    }
    bool known = *text == '\0' || strcasecmp(text, "B") == 0;
    return known || (found != NULL && strcasecmp(text, "iB") == 0) ? factor : 0;
}

/* "8", "64K", "16M", "1G": powers of 1024, with "B", "KB" or "KiB" alike, in any case. */
static status parse_size(const char *flag, const char *text, size_t *out)
{
    char *end = NULL;
    errno = 0;
    bool starts = isdigit((unsigned char)text[0]) != 0;
    unsigned long long number = starts ? strtoull(text, &end, 10) : 0;
    double factor = starts && errno == 0 ? unit(end) : 0;
    if (factor <= 0 || number == 0)
        return FAIL(STATUS_INVALID, "%s: '%.40s' is no size: give bytes, or 64K, 16M, 1G", flag,
                    text);
    double size = (double)number * factor;
    if (size > MOST)
        return FAIL(STATUS_INVALID, "%s: %.40s is more than 1024G", flag, text);
    *out = (size_t)size;
    return STATUS_OK;
}

/* From -d, -o and --root. */
static status read_case(const options *opts, collective_case *out)
{
    collective_case what = {.root = (int)opts->bench.root};
    if (!collective_bench_find(opts->benchmark, &what.kind) ||
        !find_type(opts->bench.datatype, &what.type) || !find_op(opts->bench.redop, &what.op))
        return FAIL(STATUS_INVALID, "--datatype=%.40s or --redop=%.40s: no such word",
                    opts->bench.datatype, opts->bench.redop);
    if (!dtype_is_float(what.type) && what.op == REDUCE_AVG && collective_reduces(what.kind))
        return FAIL(STATUS_INVALID, "--redop=avg is for floats, not for %s", opts->bench.datatype);
    *out = what;
    return STATUS_OK;
}

/* From -b, -e, -f, -n, -w and -c, too. */
static status read_plan(const options *opts, collective_plan *out)
{
    collective_plan plan = {.factor = opts->bench.stepfactor,
                            .iterations = (int)opts->bench.iters,
                            .warmup = (int)opts->bench.warmup_iters,
                            .check = opts->bench.check_results != 0,
                            .graph = opts->cuda_graph};
    TRY(read_case(opts, &plan.what));
    TRY(parse_size("--minbytes", opts->bench.minbytes, &plan.min_bytes));
    TRY(parse_size("--maxbytes", opts->bench.maxbytes, &plan.max_bytes));
    if (plan.min_bytes > plan.max_bytes || plan.max_bytes < dtype_size(plan.what.type))
        return FAIL(STATUS_INVALID,
                    "--minbytes=%s, --maxbytes=%s: the first must not be more than the second, and "
                    "that hold a %s",
                    opts->bench.minbytes, opts->bench.maxbytes, opts->bench.datatype);
    if (!(plan.factor > 1))
        return FAIL(STATUS_INVALID, "--stepfactor=%g: sizes grow by it; give more than 1",
                    plan.factor);
    *out = plan;
    return STATUS_OK;
}

bool collective_is_meant(const options *opts)
{
    collective_kind kind;
    return collective_bench_find(opts->benchmark, &kind);
}

status collective_check_flags(const options *opts)
{
    collective_plan plan;
    TRY(bench_check_flags(opts));
    return read_plan(opts, &plan);
}

static status interrupted(void *group)
{
    return process_group_check(group);
}

static status open_device(meter *m)
{
    device_options chosen;
    TRY(device_list_choose(m->opts, m->place.local_rank, &chosen));
    chosen.threads = 1;
    TRY(device_create(&chosen, &m->dev));
    if (m->dev->emulation != NULL)
        LOG_W("device %s: %s", m->dev->ops->name, m->dev->emulation);
    return STATUS_OK;
}

static status open_group(meter *m)
{
    const options *o = m->opts;
    process_group_options settings = {
        .backend = o->backend,
        .rank = m->place.rank,
        .world_size = m->place.world_size,
        .store = m->rendezvous ? rendezvous_store(m->rendezvous) : NULL,
        .master_addr = m->place.master_addr,
        .timeout_ms = o->timeout * 1000,
        .device = m->dev,
        .eager = !o->cuda_graph,
        .shared_bytes = collective_bench_bytes(&m->plan, m->place.world_size),
        .debug = debug_level()};
    TRY(process_group_create(&settings, &m->group));
    const cores_peers peers = {m->place.local_rank, m->place.local_world_size};
    core_binding_open(m->opts, &peers, m->dev, &m->binding);
    m->dev->interrupted = interrupted;
    m->dev->interrupted_ctx = m->group;
    return collective_bench_create(m->group, m->dev, &m->plan, &m->bench);
}

/* One line on stdout. */
static status print_json(const meter *m)
{
    const char *backend = process_group_backend(m->group);
    bool uses_nccl = strcmp(backend, "nccl") == 0;
    json_t *object =
        json_pack("{s:O, s:o, s:I, s:s, s:s, s:i, s:s, s:o*, s:s, s:b, s:b, s:i, s:i}", "rows",
                  m->table.rows, "mean_busbw", json_value_rounded(mean_busbw(&m->table), 4),
                  "wrong", (json_int_t)m->table.wrong, "bench", m->opts->benchmark, "system",
                  "mnist_ddp " MNIST_DDP_VERSION, "world", m->place.world_size, "backend", backend,
                  "nccl", uses_nccl ? nccl_record() : NULL, "device", m->dev->ops->name, "emulated",
                  m->dev->emulation != NULL, "graph", collective_bench_captures(m->bench),
                  "iterations", m->plan.iterations, "warmup", m->plan.warmup);
    return json_value_print(object);
}

static status measure(meter *m)
{
    int n = m->place.world_size;
    bool prints = m->place.rank == 0, table = prints && !(m->opts->json && m->opts->quiet);
    m->table.out = !table ? NULL : m->opts->json ? stderr : stdout;
    m->table.what = m->plan.what;
    m->table.world_size = n;
    print_head(&m->table,
               &(collective_setup){m->opts, process_group_backend(m->group), m->dev->ops->name,
                                   m->dev->emulation, collective_bench_captures(m->bench)});
    for (size_t size = collective_next_size(&m->plan, n, 0); size > 0;
         size = collective_next_size(&m->plan, n, size)) {
        collective_row row;
        core_binding_look(&m->binding);
        TRY(collective_measure(m->bench, size, &row));
        add_row(&m->table, &row);
    }
    print_end(&m->table);
    return prints && m->opts->json ? print_json(m) : STATUS_OK;
}

static status open_all(meter *m, int *exit_code)
{
    *exit_code = EXIT_CODE_USAGE;
    TRY(read_plan(m->opts, &m->plan));
    if (m->plan.what.root >= m->place.world_size)
        return FAIL(STATUS_INVALID, "--root=%d: ranks are 0 to %d", m->plan.what.root,
                    m->place.world_size - 1);
    *exit_code = EXIT_CODE_RENDEZVOUS;
    TRY(rendezvous_join(&m->place, m->opts->join_timeout * 1000, m->opts->timeout * 1000,
                        &m->rendezvous));
    m->place = *rendezvous_joined(m->rendezvous);
    *exit_code = EXIT_CODE_USAGE;
    TRY(open_device(m));
    *exit_code = EXIT_CODE_RENDEZVOUS;
    return open_group(m);
}

static status run(meter *m, int *exit_code)
{
    TRY(open_all(m, exit_code));
    *exit_code = EXIT_CODE_INTERNAL;
    TRY(measure(m));
    TRY(process_group_barrier(m->group));
    if (m->rendezvous != NULL)
        rendezvous_leave(m->rendezvous);
    return STATUS_OK;
}

static void close_all(meter *m)
{
    status_kept cause;
    status_keep(&cause);
    if (m->dev != NULL)
        m->dev->interrupted = NULL;
    json_decref(m->table.rows);
    collective_bench_destroy(m->bench);
    process_group_destroy(m->group);
    core_binding_close(&m->binding);
    device_destroy(m->dev);
    rendezvous_destroy(m->rendezvous);
    status_restore(&cause);
}

int collective_command(const options *opts, const rendezvous_place *place, int64_t started_ns)
{
    (void)started_ns;
    meter m = {.opts = opts, .place = *place, .table = {.rows = json_array()}};
    int exit_code = EXIT_CODE_INTERNAL;
    status st = run(&m, &exit_code);
    bool wrong = m.table.wrong > 0;
    close_all(&m);
    if (st != STATUS_OK)
        return exit_code_failed(st, exit_code);
    return wrong ? EXIT_CODE_INTERNAL : EXIT_SUCCESS;
}

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
    int world_size;                  /* as ours says */
    bench_study *study;              /* under way */
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

static void make_ours(const options *o, const char *backend, bench_words *out)
{
    bench_words_split(out,
                      "/proc/self/exe bench %s --backend=%s --launcher=%s --minbytes=%s "
                      "--maxbytes=%s --stepfactor=%g --iters=%lld --warmup-iters=%lld --check=%lld "
                      "--datatype=%s --redop=%s --root=%lld --device=%s --bind-to=%s "
                      "--timeout=%lld --json --quiet",
                      o->benchmark, backend, o->launcher, o->bench.minbytes, o->bench.maxbytes,
                      o->bench.stepfactor, (long long)o->bench.iters,
                      (long long)o->bench.warmup_iters, (long long)o->bench.check_results,
                      o->bench.datatype, o->bench.redop, (long long)o->bench.root, o->device,
                      o->bind_to, (long long)o->timeout);
    if (o->nproc_per_node != NULL)
        bench_words_add(out, "--nproc-per-node=%s", o->nproc_per_node);
    if (o->nccl_nvls)
        bench_words_add(out, "--nccl-nvls");
    if (!o->cuda_graph)
        bench_words_add(out, "--no-cuda-graph");
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

/* What a peer's script is given: also the sizes that ours had. */
static void add_peer_words(const comparison *c, bench_words *out)
{
    const options *o = c->opts;
    size_t i;
    json_t *row;
    bench_words_split(out, "%s %s %s %lld %lld %lld", collective_kind_name(c->kind),
                      o->bench.datatype, o->bench.redop, (long long)o->bench.root,
                      (long long)o->bench.iters, (long long)o->bench.warmup_iters);
    json_array_foreach(c->systems[0].rows, i, row)
        bench_words_add(out, "%lld", (long long)json_integer_value(json_object_get(row, "bytes")));
}

static status add_torch(comparison *c)
{
    char script[FILE_PATH_BYTES];
    contender *made = NULL;
    TRY(bench_find_peer("torch_collective.py", script));
    TRY(add_system(c, "torch gloo", strlen("torch gloo"), &made));
    bench_words_add(&made->words, "%s", bench_peer_python(c->opts));
    bench_words_split(&made->words, "-m torch.distributed.run --standalone --nproc_per_node=%d",
                      c->world_size);
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
    if (realpath(c->study->folder, folder) == NULL)
        return FAIL(STATUS_IO, "%s: %s", c->study->folder, strerror(errno));
    snprintf(c->mpi_program, sizeof c->mpi_program, "%s/mpi_collective", folder);
    bench_words_split(&compile, "sh -c");
    bench_words_add(&compile, "mpicc -O2 -o \"$1\" \"$2\" && echo '{}'");
    bench_words_add(&compile, "mpicc");
    bench_words_add(&compile, "%s", c->mpi_program);
    bench_words_add(&compile, "%s", source);
    status st = bench_child_run(&c->study->place, &compile, &said);
    json_decref(said);
    if (st != STATUS_OK)
        return status_context(st, "--peer=mpi: mpicc (Debian: libopenmpi-dev)");
    TRY(add_system(c, "Open MPI", strlen("Open MPI"), &made));
    bench_words_split(&made->words, "mpirun --allow-run-as-root --oversubscribe -np %d",
                      c->world_size);
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
    report_say(c->study->document, REPORT_NOTES, "%s is left out: %s", name, status_text());
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
    (void)find_type(o->bench.datatype, &table.what.type);
    (void)find_op(o->bench.redop, &table.what.op);
    bool graph = json_is_true(json_object_get(said, "graph"));
    print_head(&table, &(collective_setup){o, backend, device_name, .graph = graph});
    json_array_foreach(system->rows, i, row) add_row(
        &table,
        &(collective_row){.size_bytes = (size_t)json_integer_value(json_object_get(row, "bytes")),
                          .count = (size_t)json_integer_value(json_object_get(row, "count")),
                          .out_of_place = time_of(json_object_get(row, "out_of_place")),
                          .in_place = time_of(json_object_get(row, "in_place"))});
    print_end(&table);
}

static void measure_one(comparison *c, contender *system)
{
    json_t *said = NULL;
    LOG_V("measuring %s", system->name);
    status st = bench_child_run(&c->study->place, &system->words, &said);
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
    for (int i = 0; i < c->n && !bench_child_stopped(&c->study->place); i++)
        measure_one(c, &c->systems[i]);
    if (c->systems[0].rows == NULL)
        return FAIL(STATUS_PEER, "%s could not be measured, and the rest is compared with it",
                    c->systems[0].name);
    int ours = c->n;
    if (strstr(c->opts->bench.peer, "mpi") != NULL)
        leave_out(c, "Open MPI", add_mpi(c));
    if (strstr(c->opts->bench.peer, "torch") != NULL)
        leave_out(c, "torch gloo", add_torch(c));
    for (int i = ours; i < c->n && !bench_child_stopped(&c->study->place); i++)
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
    json_t *table = report_table(c->study->document, title, columns);
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
    json_t *plot = report_plot(c->study->document, name, title);
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
        bench_words_line(&c->systems[i].words, line, sizeof line);
        json_array_append_new(systems, json_pack("{s:s, s:s, s:O?}", "name", c->systems[i].name,
                                                 "command", line, "rows", c->systems[i].rows));
    }
    json_object_set_new(c->study->document, "world", json_integer(c->world_size));
    json_object_set_new(c->study->document, "systems", systems);
    for (int way = 0; way < 2; way++)
        if (has_way(c, way)) {
            add_table(c, way);
            if (c->kind != COLLECTIVE_BARRIER)
                add_plot(c, way);
        }
}

static status prepare(bench_study *study, void *self)
{
    comparison *c = self;
    c->study = study;
    TRY(collective_check_flags(c->opts));
    if (c->opts->nnodes != NULL && strcmp(c->opts->nnodes, "1") != 0)
        return FAIL(STATUS_INVALID, "--nnodes=%s: backends and peers are compared on one node",
                    c->opts->nnodes);
    return add_ours(c);
}

static status measure_systems(bench_study *study, void *self)
{
    (void)study;
    TRY(measure_all(self));
    add_figures(self);
    return STATUS_OK;
}

int collective_compare_command(const options *opts, int argc, char **argv)
{
    static const bench_plan plan = {"An operation on several backends",
                                    CHILD_TIMEOUT_MS,
                                    EXIT_CODE_CHECKPOINT,
                                    false,
                                    prepare,
                                    measure_systems};
    static comparison c; /* its command lines are long */
    c = (comparison){.opts = opts};
    (void)collective_bench_find(opts->benchmark, &c.kind);
    int exit_code = bench_study_run(&plan, &c, opts, argc, argv);
    if (c.mpi_program[0] != '\0')
        unlink(c.mpi_program);
    for (int i = 0; i < c.n; i++)
        json_decref(c.systems[i].rows);
    return exit_code;
}
