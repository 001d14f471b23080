#include "tests/app/support/bench_fixture.h"

#include "base/file.h"

#include <sys/stat.h>

/* A step of b images on w devices: 3 ms of arithmetic per 64 images, shared by the devices; 0.4 ms
 * of the optimizer; 0.1 ms of data; communication 1 ms (dp, ps: w ms). The first epoch is twice as
 * slow. */
static const char MEASURED_RUN[] =
    "#!/bin/sh\n"
    "echo \"$*\" >>\"$0.log\"\n"
    "mode=ddp world=1 loss=0.5\n"
    "for word; do case $word in\n"
    "  --mode=*) mode=${word#*=};; --nproc-per-node=*|--replicas=*) world=${word#*=};;\n"
    "  --epochs=*) epochs=${word#*=};; --limit=*) limit=${word#*=};;\n"
    "  --run-dir=*) run=${word#*=};; --comm-hook=*) loss=0.75;;\n"
    "  --global-batch-size=*|--batch-size=*) batch=${word#*=};; --model=*) model=${word#*=};;\n"
    "esac; done\n"
    "[ $mode != ps ] || loss=0.5000001\n"
    "mkdir -p \"$run\"\n"
    "echo '{\"event\":\"epoch\",\"train_loss\":9}' >\"$run/metrics.jsonl\"\n"
    "echo '{\"event\":\"epoch\",\"train_loss\":'$loss'}' >>\"$run/metrics.jsonl\"\n"
    "echo '{\"event\":\"end\"}' >>\"$run/metrics.jsonl\"\n"
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

const char *bench_fixture_program(void)
{
    const char *path = test_folder_path("fake.sh");
    file_part part = {MEASURED_RUN, sizeof MEASURED_RUN - 1};
    test_folder_require(file_replace(path, &part, 1));
    ck_assert_int_eq(chmod(path, 0700), 0);
    unlink(test_folder_path("fake.sh.log"));
    return path;
}

void bench_fixture_open(const char *line, bench_fixture *out)
{
    *out = (bench_fixture){.opts = command_line_options(line), .notes = json_array()};
    test_folder_require(bench_cases_make(&out->opts, false, &out->cases, out->notes));
    test_folder_require(bench_rows_create(&out->cases, (int)out->opts.bench.repeats, &out->rows));
    test_folder_require(bench_child_open(20000, &out->place));
    test_folder_require(bench_commands_init(&out->opts, false, out->place.folder, &out->commands));
    test_folder_require(bench_commands_find(&out->commands));
    out->commands.program = bench_fixture_program();
    out->rows.cores = 2; /* whatever this machine has */
    out->document =
        report_create(&(report_head){"benchmark", out->opts.benchmark, "A comparison", 0, NULL});
}

void bench_fixture_close(bench_fixture *b)
{
    json_decref(b->document);
    json_decref(b->notes);
    bench_child_close(&b->place);
    bench_rows_free(&b->rows);
    bench_cases_free(&b->cases);
    options_free(&b->opts);
}

json_t *bench_fixture_row(const bench_fixture *b, const char *mode, int world, int global_batch)
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

double bench_fixture_number(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    ck_assert_msg(json_is_number(value), "%s is no number", key);
    return json_number_value(value);
}
