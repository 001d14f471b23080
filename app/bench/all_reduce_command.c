/* mnist_ddp bench all-reduce: as one rank of those that measure. */
#include "app/bench/all_reduce_command.h"

#include "app/bench/all_reduce_report.h"
#include "app/bench/benchmarks.h"
#include "app/bench/byte_size.h"
#include "app/device_list.h"
#include "app/exit_codes.h"
#include "app/nccl_record.h"
#include "app/version.h"
#include "base/json_text.h"
#include "base/log.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

/* What one rank has open. */
typedef struct meter {
    const options *opts;
    rendezvous_place place;
    all_reduce_plan plan;
    rendezvous *rdzv;
    device *dev;
    process_group *group;
    all_reduce_bench *bench;
    all_reduce_report report; /* of rank 0 */
} meter;

status all_reduce_plan_read(const options *opts, all_reduce_plan *out)
{
    all_reduce_plan plan = {.factor = opts->stepfactor,
                            .iterations = (int)opts->iters,
                            .warmup = (int)opts->warmup_iters};
    TRY(byte_size_parse("--minbytes", opts->minbytes, &plan.min_bytes));
    TRY(byte_size_parse("--maxbytes", opts->maxbytes, &plan.max_bytes));
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
    return all_reduce_plan_read(opts, &plan);
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
    m->dev->interrupted = interrupted;
    m->dev->interrupted_ctx = m->group;
    return all_reduce_bench_create(m->group, m->dev, &m->plan, &m->bench);
}

static void print_head(const meter *m, FILE *out)
{
    fprintf(out,
            "# mnist_ddp %s, bench all-reduce: %d rank%s, backend %s, device %s\n"
            "# sizes %s to %s, factor %g; %d iterations behind %d of warm-up, each waited for; "
            "means over ranks\n",
            MNIST_DDP_VERSION, m->place.world_size, m->place.world_size == 1 ? "" : "s",
            process_group_backend(m->group), m->dev->ops->name, m->opts->minbytes,
            m->opts->maxbytes, m->plan.factor, m->plan.iterations, m->plan.warmup);
    if (m->dev->emulation != NULL)
        fprintf(out, "# NO GPU: %s\n", m->dev->emulation);
}

/* One line on stdout. */
static status print_json(const meter *m)
{
    json_t *object = all_reduce_report_json(&m->report);
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
    char *line = NULL;
    status st = json_text_print(object, JSON_COMPACT | JSON_REAL_PRECISION(10), &line);
    json_decref(object);
    if (st == STATUS_OK)
        puts(line);
    free(line);
    return st;
}

static status measure(meter *m)
{
    bool prints = m->place.rank == 0, table = prints && !(m->opts->json && m->opts->quiet);
    FILE *out = m->opts->json ? stderr : stdout;
    if (table)
        print_head(m, out);
    TRY(all_reduce_report_open(table ? out : NULL, m->place.world_size, &m->report));
    for (size_t size = all_reduce_next_size(&m->plan, 0); size > 0;
         size = all_reduce_next_size(&m->plan, size)) {
        all_reduce_row row;
        TRY(all_reduce_measure(m->bench, size, &row));
        all_reduce_report_row(&m->report, &row);
    }
    all_reduce_report_end(&m->report);
    return prints && m->opts->json ? print_json(m) : STATUS_OK;
}

static status open_all(meter *m, int *exit_code)
{
    *exit_code = EXIT_CODE_USAGE;
    TRY(all_reduce_plan_read(m->opts, &m->plan));
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
    all_reduce_report_close(&m->report);
    all_reduce_bench_destroy(m->bench);
    process_group_destroy(m->group);
    device_destroy(m->dev);
    rendezvous_destroy(m->rdzv);
    status_restore(&cause);
}

int all_reduce_command(const options *opts, const rendezvous_place *place, int64_t started_ns)
{
    (void)started_ns;
    meter m = {.opts = opts, .place = *place};
    int exit_code = EXIT_CODE_INTERNAL;
    status st = run(&m, &exit_code);
    bool wrong = m.report.wrong > 0;
    close_all(&m);
    if (st != STATUS_OK)
        return exit_code_failed(st, exit_code);
    return wrong ? EXIT_CODE_INTERNAL : EXIT_SUCCESS;
}
