/* A stand-in for a measured run: a shell script that prints the JSON line that a run of the asked
 * mode, world size and batch might end with. Its figures are simple formulas, so that tests know
 * what must come out; a repeat differs from the other by a little. */
#ifndef MNIST_DDP_TESTS_APP_BENCH_FAKE_H
#define MNIST_DDP_TESTS_APP_BENCH_FAKE_H

#include "app/bench/dp_vs_ddp.h"
#include "app/report/report.h"
#include "base/file_draft.h"
#include "tests/app/options_lines.h"
#include "tests/app/workbench.h"

#include <sys/stat.h>

/* A step of b images on w devices: 3 ms of arithmetic per 64 images, shared by the devices; 0.4 ms
 * of the optimizer; 0.1 ms of data; communication 1 ms (dp, ps: w ms). The first epoch is twice as
 * slow. */
static const char BENCH_FAKE[] =
    "#!/bin/sh\n"
    "echo \"$*\" >>\"$0.log\"\n"
    "mode=ddp world=1\n"
    "for word; do case $word in\n"
    "  --mode=*) mode=${word#*=};; --nproc-per-node=*|--replicas=*) world=${word#*=};;\n"
    "  --epochs=*) epochs=${word#*=};; --limit=*) limit=${word#*=};;\n"
    "  --global-batch-size=*|--batch-size=*) batch=${word#*=};; --model=*) model=${word#*=};;\n"
    "esac; done\n"
    "runs=$(wc -l <\"$0.log\")\n"
    "[ \"$FAKE_FAILS\" != \"$mode$world\" ] || { echo 'no such device' >&2; exit 65; }\n"
    "awk -v mode=$mode -v w=$world -v e=$epochs -v n=$limit -v b=$batch -v runs=$runs 'BEGIN {\n"
    "  steps = n / b; master = mode == \"dp\" || mode == \"ps\";\n"
    "  work = 3e-3 * b / 64 / w; comm = w == 1 ? 0 : master ? w * 1e-3 : 1e-3;\n"
    "  step = (work + comm + 5e-4) * (1 + runs % 7 / 1000);\n"
    "  printf \"{\\\"train_s\\\":[\";\n"
    "  for (i = 0; i < e; i++) printf \"%s%.9f\", i ? \",\" : \"\", step * steps * (i ? 1 : 2);\n"
    "  all = steps * (e + 1); unit = all * (1 + runs % 7 / 1000);\n"
    "  printf \"],\\\"images_per_epoch\\\":%d,\\\"steps\\\":%d,\\\"test_acc\\\":0.93,\", n, steps "
    "* e;\n"
    "  printf \"\\\"last_loss\\\":0.25,\\\"comm_total\\\":%.9f,\\\"comm_exposed\\\":%.9f,\", comm "
    "* unit, comm * unit;\n"
    "  printf \"\\\"phases\\\":{\\\"data\\\":%.9f,\\\"forward\\\":%.9f,\\\"backward\\\":%.9f,\", "
    "1e-4 * unit, work * unit / 3, 2 * work * unit / 3;\n"
    "  printf \"\\\"broadcast\\\":%.9f,\\\"scatter\\\":%.9f,\\\"gather\\\":%.9f,\", master * comm "
    "* unit * .5, master * comm * unit * .1, master * comm * unit * .1;\n"
    "  printf "
    "\"\\\"reduce\\\":%.9f,\\\"waiting\\\":0,\\\"optimizer\\\":%.9f,\\\"accelerator\\\":0},\", "
    "comm * unit * (master ? .3 : 1), 4e-4 * unit;\n"
    "  x = w == 1 ? 0 : master ? 2e6 * (w - 1) : 4e6 * (w - 1) / w;\n"
    "  printf "
    "\"\\\"bytes\\\":{\\\"sent\\\":%d,\\\"received\\\":%d,\\\"sent_busiest\\\":%d,\\\"received_"
    "busiest\\\":%d},\", x, x, x, x;\n"
    "  printf \"\\\"peak_mib\\\":[\"; for (i = 0; i < w; i++) printf \"%s%d\", i ? \",\" : \"\", "
    "30 + i; print \"]}\" }'\n";

/* One comparison by fakes, up to its document. */
typedef struct fake_bench {
    options opts;
    bench_cases cases;
    bench_rows rows;
    bench_child place;
    bench_commands commands;
    json_t *notes, *document;
} fake_bench;

static inline const char *fake_program(void)
{
    const char *path = workbench_path("fake.sh");
    file_part part = {BENCH_FAKE, sizeof BENCH_FAKE - 1};
    workbench_ok(file_replace(path, &part, 1));
    ck_assert_int_eq(chmod(path, 0700), 0);
    unlink(workbench_path("fake.sh.log"));
    return path;
}

/* Parses the line and makes everything ready to measure. */
static inline void fake_open(const char *line, fake_bench *out)
{
    *out = (fake_bench){.opts = parsed(line), .notes = json_array()};
    workbench_ok(bench_cases_make(&out->opts, false, &out->cases, out->notes));
    workbench_ok(bench_rows_create(&out->cases, (int)out->opts.repeats, &out->rows));
    workbench_ok(bench_child_open(20000, &out->place));
    workbench_ok(bench_commands_init(&out->opts, false, out->place.folder, &out->commands));
    workbench_ok(bench_commands_find(&out->commands));
    out->commands.program = fake_program();
    out->rows.cores = 2; /* whatever this machine has */
    out->document =
        report_create(&(report_head){"benchmark", "dp-vs-ddp", "A comparison", 0, NULL});
}

static inline void fake_close(fake_bench *b)
{
    json_decref(b->document);
    json_decref(b->notes);
    bench_child_close(&b->place);
    bench_rows_free(&b->rows);
    bench_cases_free(&b->cases);
    options_free(&b->opts);
}

static inline json_t *fake_row(const fake_bench *b, const char *mode, int world, int global_batch)
{
    json_t *row;
    size_t i;
    json_array_foreach(json_object_get(b->document, "rows"), i,
                       row) if (strcmp(json_string_value(json_object_get(row, "mode")), mode) ==
                                    0 &&
                                json_integer_value(json_object_get(row, "world")) == world &&
                                json_integer_value(json_object_get(row, "global_batch")) ==
                                    global_batch) return row;
    ck_abort_msg("no row %s x %d, %d images", mode, world, global_batch);
    return NULL;
}

static inline double fake_number(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    ck_assert_msg(json_is_number(value), "%s is no number", key);
    return json_number_value(value);
}

#endif
