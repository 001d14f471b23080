/* mnist_ddp bench all-reduce: as one rank of those that measure. */
#include "app/bench/all_reduce.h"

#include "app/bench/bench.h"
#include "app/common/core_binding.h"
#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/common/nccl_record.h"
#include "app/common/version.h"
#include "base/log.h"
#include "kernels/ops.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MOST 1099511627776.0 /* 2^40 */

/* What one rank has open. */
typedef struct meter {
    const options *opts;
    rendezvous_place place;
    all_reduce_plan plan;
    rendezvous *rdzv;
    device *dev;
    core_binding binding;
    process_group *group;
    all_reduce_bench *bench;
    FILE *out;        /* rank 0's table; NULL: none is printed */
    json_t *rows;     /* the same as JSON */
    double busbw_sum; /* over all rows, both ways */
    int64_t wrong;
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

/* From -b, -e, -f, -n and -w. */
static status read_plan(const options *opts, all_reduce_plan *out)
{
    all_reduce_plan plan = {.factor = opts->stepfactor,
                            .iterations = (int)opts->iters,
                            .warmup = (int)opts->warmup_iters};
    TRY(parse_size("--minbytes", opts->minbytes, &plan.min_bytes));
    TRY(parse_size("--maxbytes", opts->maxbytes, &plan.max_bytes));
    if (plan.min_bytes > plan.max_bytes || plan.max_bytes < sizeof(float))
        return FAIL(STATUS_INVALID,
                    "--minbytes=%s, --maxbytes=%s: the first must not be more than the second, and "
                    "that hold a float",
                    opts->minbytes, opts->maxbytes);
    if (!(plan.factor > 1))
        return FAIL(STATUS_INVALID, "--stepfactor=%g: sizes grow by it; give more than 1",
                    plan.factor);
    *out = plan;
    return STATUS_OK;
}

bool all_reduce_is_meant(const options *opts)
{
    return opts->benchmark != NULL && strcmp(opts->benchmark, "all-reduce") == 0;
}

status all_reduce_check(const options *opts)
{
    all_reduce_plan plan;
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
    process_group_options settings = {.backend = o->backend,
                                      .rank = m->place.rank,
                                      .world_size = m->place.world_size,
                                      .store = m->rdzv ? rendezvous_store(m->rdzv) : NULL,
                                      .master_addr = m->place.master_addr,
                                      .timeout_ms = o->timeout * 1000,
                                      .device = m->dev,
                                      .shared_bytes = m->plan.max_bytes};
    TRY(process_group_create(&settings, &m->group));
    const cores_peers peers = {m->place.local_rank, m->place.local_world_size};
    core_binding_open(m->opts, &peers, m->dev, &m->binding);
    m->dev->interrupted = interrupted;
    m->dev->interrupted_ctx = m->group;
    return all_reduce_bench_create(m->group, m->dev, &m->plan, &m->bench);
}

/* The columns' names, as nccl-tests writes them. */
static void print_columns(FILE *out)
{
    fprintf(out, "#\n#%55s%38s\n", "out-of-place", "in-place");
    fprintf(out, "#%11s%14s%8s%8s%7s", "size", "count", "type", "redop", "root");
    for (int way = 0; way < 2; way++)
        fprintf(out, "%9s%8s%8s%7s", "time", "algbw", "busbw", "#wrong");
    fprintf(out, "\n#%11s%14s%23s", "(B)", "(elements)", "");
    for (int way = 0; way < 2; way++)
        fprintf(out, "%9s%8s%8s%7s", "(us)", "(GB/s)", "(GB/s)", "");
    fputc('\n', out);
    fflush(out);
}

static void print_head(const meter *m, FILE *out)
{
    fprintf(out,
            "# mnist_ddp %s, bench all-reduce: %d rank%s, backend %s, device %s\n"
            "# sizes %s to %s, factor %g; %d iterations after %d of warm-up, each waited for; "
            "means over ranks\n",
            MNIST_DDP_VERSION, m->place.world_size, m->place.world_size == 1 ? "" : "s",
            process_group_backend(m->group), m->dev->ops->name, m->opts->minbytes,
            m->opts->maxbytes, m->plan.factor, m->plan.iterations, m->plan.warmup);
    if (m->dev->emulation != NULL)
        fprintf(out, "# NO GPU: %s\n", m->dev->emulation);
    print_columns(out);
}

/* Two significant places at least, in the column's width. */
static void print_time(FILE *out, double us)
{
    fprintf(out, "%9.*f", us < 100 ? 2 : us < 10000 ? 1 : 0, us);
}

static void print_way(meter *m, size_t size_bytes, const all_reduce_time *t)
{
    print_time(m->out, t->mean_s * 1e6);
    fprintf(m->out, "%8.2f%8.2f%7lld", all_reduce_algbw(size_bytes, t->mean_s),
            all_reduce_busbw(size_bytes, t->mean_s, m->place.world_size), (long long)t->wrong);
}

static json_t *way_json(const meter *m, size_t size_bytes, const all_reduce_time *t)
{
    json_t *object = json_object();
    json_object_set_new(object, "time_us", json_value_rounded(t->mean_s * 1e6, 3));
    if (t->least_s >= 0) {
        json_object_set_new(object, "median_us", json_value_rounded(t->median_s * 1e6, 3));
        json_object_set_new(object, "least_us", json_value_rounded(t->least_s * 1e6, 3));
    }
    json_object_set_new(object, "algbw",
                        json_value_rounded(all_reduce_algbw(size_bytes, t->mean_s), 4));
    json_object_set_new(
        object, "busbw",
        json_value_rounded(all_reduce_busbw(size_bytes, t->mean_s, m->place.world_size), 4));
    json_object_set_new(object, "wrong", json_integer(t->wrong));
    return object;
}

static void add_row(meter *m, const all_reduce_row *row)
{
    if (m->out != NULL) {
        fprintf(m->out, " %11zu%14zu%8s%8s%7d", row->size_bytes, row->count, "float", "sum", -1);
        print_way(m, row->size_bytes, &row->out_of_place);
        print_way(m, row->size_bytes, &row->in_place);
        fputc('\n', m->out);
        fflush(m->out);
    }
    m->busbw_sum +=
        all_reduce_busbw(row->size_bytes, row->out_of_place.mean_s, m->place.world_size) +
        all_reduce_busbw(row->size_bytes, row->in_place.mean_s, m->place.world_size);
    m->wrong += row->out_of_place.wrong + row->in_place.wrong;
    json_t *object = json_object();
    json_object_set_new(object, "bytes", json_integer((json_int_t)row->size_bytes));
    json_object_set_new(object, "count", json_integer((json_int_t)row->count));
    json_object_set_new(object, "type", json_string("float"));
    json_object_set_new(object, "redop", json_string("sum"));
    json_object_set_new(object, "root", json_integer(-1));
    json_object_set_new(object, "out_of_place", way_json(m, row->size_bytes, &row->out_of_place));
    json_object_set_new(object, "in_place", way_json(m, row->size_bytes, &row->in_place));
    json_array_append_new(m->rows, object);
}

static double mean_busbw(const meter *m)
{
    size_t n = 2 * json_array_size(m->rows);
    return n > 0 ? m->busbw_sum / (double)n : 0;
}

static void print_end(const meter *m)
{
    fprintf(m->out, "# Wrong elements    : %lld %s\n", (long long)m->wrong,
            m->wrong == 0 ? "OK" : "FAILED");
    fprintf(m->out, "# Avg bus bandwidth : %.4g GB/s\n", mean_busbw(m));
    fflush(m->out);
}

/* One line on stdout. */
static status print_json(const meter *m)
{
    json_t *object = json_object();
    json_object_set(object, "rows", m->rows);
    json_object_set_new(object, "mean_busbw", json_value_rounded(mean_busbw(m), 4));
    json_object_set_new(object, "wrong", json_integer(m->wrong));
    json_object_set_new(object, "bench", json_string("all-reduce"));
    json_object_set_new(object, "system", json_string("mnist_ddp " MNIST_DDP_VERSION));
    json_object_set_new(object, "world", json_integer(m->place.world_size));
    json_object_set_new(object, "backend", json_string(process_group_backend(m->group)));
    if (strcmp(process_group_backend(m->group), "nccl") == 0)
        json_object_set_new(object, "nccl", nccl_record());
    json_object_set_new(object, "device", json_string(m->dev->ops->name));
    json_object_set_new(object, "emulated", json_boolean(m->dev->emulation != NULL));
    json_object_set_new(object, "iterations", json_integer(m->plan.iterations));
    json_object_set_new(object, "warmup", json_integer(m->plan.warmup));
    return json_value_print(object);
}

static status measure(meter *m)
{
    bool prints = m->place.rank == 0, table = prints && !(m->opts->json && m->opts->quiet);
    m->out = !table ? NULL : m->opts->json ? stderr : stdout;
    if (table)
        print_head(m, m->out);
    for (size_t size = all_reduce_next_size(&m->plan, 0); size > 0;
         size = all_reduce_next_size(&m->plan, size)) {
        all_reduce_row row;
        core_binding_look(&m->binding);
        TRY(all_reduce_measure(m->bench, size, &row));
        add_row(m, &row);
    }
    if (table)
        print_end(m);
    return prints && m->opts->json ? print_json(m) : STATUS_OK;
}

static status open_all(meter *m, int *exit_code)
{
    *exit_code = EXIT_CODE_USAGE;
    TRY(read_plan(m->opts, &m->plan));
    *exit_code = EXIT_CODE_RENDEZVOUS;
    TRY(rendezvous_join(&m->place, m->opts->join_timeout * 1000, m->opts->timeout * 1000,
                        &m->rdzv));
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
    if (m->rdzv != NULL)
        rendezvous_leave(m->rdzv);
    return STATUS_OK;
}

static void close_all(meter *m)
{
    status_kept cause;
    status_keep(&cause);
    if (m->dev != NULL)
        m->dev->interrupted = NULL;
    json_decref(m->rows);
    all_reduce_bench_destroy(m->bench);
    process_group_destroy(m->group);
    core_binding_close(&m->binding);
    device_destroy(m->dev);
    rendezvous_destroy(m->rdzv);
    status_restore(&cause);
}

int all_reduce_command(const options *opts, const rendezvous_place *place, int64_t started_ns)
{
    (void)started_ns;
    meter m = {.opts = opts, .place = *place, .rows = json_array()};
    int exit_code = EXIT_CODE_INTERNAL;
    status st = run(&m, &exit_code);
    bool wrong = m.wrong > 0;
    close_all(&m);
    if (st != STATUS_OK)
        return exit_code_failed(st, exit_code);
    return wrong ? EXIT_CODE_INTERNAL : EXIT_SUCCESS;
}
