/* mnist_ddp bench all-reduce, broadcast, ...: as one rank of those that measure. */
#include "app/bench/collective_bench.h"

#include "app/bench/bench.h"
#include "app/bench/collective_table.h"
#include "app/common/core_binding.h"
#include "app/common/debug_level.h"
#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/common/nccl_record.h"
#include "app/common/version.h"
#include "base/log.h"
#include "kernels/device_kind.h"
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
    collective_plan plan;
    rendezvous *rdzv;
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
        !collective_type_find(opts->bench.datatype, &what.type) ||
        !collective_op_find(opts->bench.redop, &what.op))
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
                            .check = opts->bench.check_results != 0};
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
    process_group_options settings = {.backend = o->backend,
                                      .rank = m->place.rank,
                                      .world_size = m->place.world_size,
                                      .store = m->rdzv ? rendezvous_store(m->rdzv) : NULL,
                                      .master_addr = m->place.master_addr,
                                      .timeout_ms = o->timeout * 1000,
                                      .device = m->dev,
                                      .shared_bytes =
                                          collective_bench_bytes(&m->plan, m->place.world_size),
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
    json_t *object = json_object();
    json_object_set(object, "rows", m->table.rows);
    json_object_set_new(object, "mean_busbw",
                        json_value_rounded(collective_table_busbw(&m->table), 4));
    json_object_set_new(object, "wrong", json_integer(m->table.wrong));
    json_object_set_new(object, "bench", json_string(m->opts->benchmark));
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
    int n = m->place.world_size;
    bool prints = m->place.rank == 0, table = prints && !(m->opts->json && m->opts->quiet);
    m->table.out = !table ? NULL : m->opts->json ? stderr : stdout;
    m->table.what = m->plan.what;
    m->table.world_size = n;
    collective_table_head(&m->table, &(collective_setup){m->opts, process_group_backend(m->group),
                                                         m->dev->ops->name, m->dev->emulation});
    for (size_t size = collective_next_size(&m->plan, n, 0); size > 0;
         size = collective_next_size(&m->plan, n, size)) {
        collective_row row;
        core_binding_look(&m->binding);
        TRY(collective_measure(m->bench, size, &row));
        collective_table_add(&m->table, &row);
    }
    collective_table_end(&m->table);
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
                        &m->rdzv));
    m->place = *rendezvous_joined(m->rdzv);
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
    json_decref(m->table.rows);
    collective_bench_destroy(m->bench);
    process_group_destroy(m->group);
    core_binding_close(&m->binding);
    device_destroy(m->dev);
    rendezvous_destroy(m->rdzv);
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
