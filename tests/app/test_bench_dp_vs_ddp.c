/* mnist_ddp bench dp-vs-ddp: which cases there are, what is measured of stand-ins for runs, and a
 * comparison of real ones. */
#include "app/bench/bench.h"
#include "app/report/report.h"
#include "base/file.h"
#include "tests/app/support/bench_fixture.h"
#include "tests/support/facts.h"
#include "tests/support/full_pipe.h"

#include "base/clock.h"

#include <dlfcn.h>
#include <glob.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>

enum { WHOLE_S = 200 };

static bench_cases cases_of(const char *line, json_t *notes)
{
    bench_cases cases;
    options opts = command_line_options(line);
    ck_assert_msg(bench_cases_make(&opts, false, &cases, notes) == STATUS_OK, "%s: %s", line,
                  status_text());
    options_free(&opts);
    return cases;
}

static void assert_case(const bench_cases *cases, int i, const char *name, bool strong, bool weak)
{
    char text[BENCH_CASE_BYTES];
    ck_assert_int_lt(i, cases->count);
    bench_case_name(&cases->list[i], text);
    ck_assert_str_eq(text, name);
    ck_assert(cases->list[i].strong == strong && cases->list[i].weak == weak);
}

START_TEST(every_case_is_there_once)
{
    json_t *notes = json_array();
    bench_cases cases = cases_of("bench dp-vs-ddp --models cnn --world-sizes 1,3,1 --batch-sizes "
                                 "64 --modes single,dp,ddp,ps",
                                 notes);
    assert_case(&cases, 0, "single x 1, cnn, batch 64", true, true);
    assert_case(&cases, 1, "dp x 1, cnn, batch 64", true, true);
    assert_case(&cases, 2, "dp x 3, cnn, batch 64", true, false);
    assert_case(&cases, 3, "dp x 3, cnn, batch 192", false, true);
    assert_case(&cases, 4, "ddp x 1, cnn, batch 64", true, true);
    assert_case(&cases, 5, "ddp x 3, cnn, batch 192", false, true);
    assert_case(&cases, 6, "ps x 3, cnn, batch 192", false, true);
    ck_assert_int_eq(cases.count, 7);
    ck_assert_uint_eq(json_array_size(notes), 3); /* ps x 1; 64 images of ddp x 3 and of ps x 3 */
    ASSERT_FACTS(json_string_value(json_array_get(notes, 0)), "ddp x 3", "64");
    ck_assert_int_eq(bench_cases_base(&cases, 5), 0);
    ck_assert_int_eq(bench_cases_find(&cases, 5, false, STRATEGY_DP), 3);
    ck_assert_int_eq(bench_cases_find(&cases, 2, false, STRATEGY_DDP), -1);
    bench_cases_free(&cases);
    json_decref(notes);
}
END_TEST

START_TEST(the_peer_stands_beside_ours)
{
    json_t *notes = json_array();
    bench_cases cases = cases_of(
        "bench dp-vs-ddp --models mlp --world-sizes 2 --scaling strong --peer torch", notes);
    assert_case(&cases, 0, "single x 1, mlp, batch 64", true, false);
    assert_case(&cases, 1, "torch single x 1, mlp, batch 64", true, false);
    assert_case(&cases, 2, "dp x 2, mlp, batch 64", true, false);
    assert_case(&cases, 3, "ddp x 2, mlp, batch 64", true, false);
    assert_case(&cases, 4, "torch ddp x 2, mlp, batch 64", true, false);
    ck_assert_int_eq(cases.count, 5);
    ck_assert_int_eq(bench_cases_base(&cases, 4), 1);
    ck_assert_int_eq(bench_cases_find(&cases, 3, true, STRATEGY_DDP), 4);
    ASSERT_FACTS(json_string_value(json_array_get(notes, 0)), "torch dp", "torch.nn.DataParallel");
    bench_cases_free(&cases);
    json_decref(notes);
}
END_TEST

static const struct {
    const char *line, *facts[6];
} REFUSED[] = {
    {"--modes dp,ddq", {"--modes", "'ddq'", "single", "ddp", "ps"}},
    {"--models mlp,,cnn", {"--models", "''", "mlp", "cnn"}},
    {"--world-sizes 1,0", {"--world-sizes", "'0'", "1", "64"}},
    {"--world-sizes 2x", {"--world-sizes", "'2x'"}},
    {"--batch-sizes 64,99999999999999999999",
     {"--batch-sizes", "99999999999999999999", "1", "1048576"}},
    {"--modes ps --world-sizes 1", {"ps x 1"}},
    {"--modes ddp --world-sizes 3 --scaling strong", {"ddp x 3", "64"}},
};

START_TEST(wrong_lists_are_refused)
{
    bench_cases cases;
    char line[256];
    json_t *notes = json_array();
    snprintf(line, sizeof line, "bench dp-vs-ddp %s", REFUSED[_i].line);
    options opts = command_line_options(line);
    ck_assert(bench_cases_make(&opts, false, &cases, notes) == STATUS_INVALID);
    ASSERT_FACTS_LISTED(status_text(), REFUSED[_i].facts);
    options_free(&opts);
    json_decref(notes);
}
END_TEST

/* The first number after the first `name` in a sentence; NaN if there is none. */
static double ratio_in(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    at = at != NULL ? strpbrk(at + strlen(name), "0123456789") : NULL;
    return at != NULL ? strtod(at, NULL) : (double)NAN;
}

/* The whole document, from figures that are known: 3 ms of work per 64 images on one device. */
START_TEST(figures_are_those_of_the_runs)
{
    bench_fixture b;
    bench_fixture_open("bench dp-vs-ddp --models mlp --world-sizes 1,2,4 --repeats 7 --steps 10",
                       &b);
    dp_vs_ddp_measure(&b.commands, &b.place, &b.rows);
    dp_vs_ddp_document(&b.commands, &b.rows, b.notes, b.document);
    json_t *row = bench_fixture_row(&b, "single", 1, 64),
           *speed = json_object_get(row, "images_per_s");
    ck_assert_int_eq(json_integer_value(json_object_get(speed, "n")), 7);
    ck_assert_uint_eq(json_array_size(json_object_get(speed, "values")), 7);
    ck_assert_double_eq_tol(bench_fixture_number(speed, "median"), 64 / 3.5e-3,
                            0.005 * 64 / 3.5e-3);
    ck_assert(bench_fixture_number(speed, "low") < bench_fixture_number(speed, "high"));
    ck_assert_double_eq_tol(bench_fixture_number(speed, "coverage"), 0.984, 0.001);
    ck_assert(json_is_null(json_object_get(row, "efficiency_strong"))); /* the base itself */
    row = bench_fixture_row(&b, "ddp", 4, 256);
    ck_assert_double_eq_tol(bench_fixture_number(row, "step_ms"), 4.5, 0.03);
    /* the first epoch takes twice as long: (2 + 1) / 2 */
    ck_assert_double_eq_tol(bench_fixture_number(row, "step_ms_with_warmup"), 6.75, 0.05);
    ck_assert_double_eq_tol(bench_fixture_number(row, "phases_share_of_step"), 1, 0.01);
    ck_assert_double_eq_tol(bench_fixture_number(row, "efficiency_weak"), 3.5 / 4.5, 0.01);
    ck_assert(json_is_null(json_object_get(row, "efficiency_strong")));
    ck_assert_double_eq_tol(
        bench_fixture_number(json_object_get(row, "bytes_per_step"), "sent_busiest"), 3e6, 1);
    ck_assert_uint_eq(json_array_size(json_object_get(row, "peak_mib")), 4);
    ck_assert(json_is_null(json_object_get(row, "failure")));
    row = bench_fixture_row(&b, "dp", 4, 64);
    /* 0.75 ms of work, 4 of traffic, 0.5: 5.25; on one device 3.5; four devices */
    ck_assert_double_eq_tol(bench_fixture_number(row, "efficiency_strong"), 3.5 / 5.25 / 4, 0.01);
    ASSERT_FACTS(json_string_value(json_object_get(row, "why")), "master", "76 %",
                 "broadcast 38 %, reduce 23 %");
    json_t *summary = json_object_get(json_object_get(b.document, "report"), "summary");
    ck_assert_uint_eq(json_array_size(summary), 4); /* ddp beside dp: 2 and 4, strong and weak */
    const char *pair = json_string_value(json_array_get(summary, 2));
    ASSERT_FACTS(pair, "ddp x 4, mlp, batch 64", "dp x 4, mlp, batch 64", "7 pairs");
    ck_assert_double_eq_tol(ratio_in(pair, "batch 64"), 5.25 / 2.25, 0.03);
    bench_fixture_close(&b);
}
END_TEST

/* The heads of the document's table number `t`, in one line. */
static void read_heads(const bench_fixture *b, size_t t, char *out, size_t out_bytes)
{
    const json_t *report = json_object_get(b->document, "report"),
                 *table = json_array_get(json_object_get(report, "tables"), t);
    char *text = json_dumps(table, JSON_COMPACT);
    ck_assert_ptr_nonnull(text);
    snprintf(out, out_bytes, "%.*s", (int)(strstr(text, "rows") - text), text);
    free(text);
}

/* One row has two step times: with the warm-up and without it. */
START_TEST(a_step_with_the_warm_up_says_so)
{
    char heads[1024];
    bench_fixture b;
    bench_fixture_open("bench dp-vs-ddp --models mlp --world-sizes 1 --repeats 1 --steps 10", &b);
    dp_vs_ddp_measure(&b.commands, &b.place, &b.rows);
    dp_vs_ddp_document(&b.commands, &b.rows, b.notes, b.document);
    read_heads(&b, 0, heads, sizeof heads);
    ASSERT_FACTS(heads, "Speed", "step ms", "median of pairs");
    ASSERT_SILENT(heads, "warm-up");
    read_heads(&b, 1, heads, sizeof heads);
    ASSERT_FACTS(heads, "Where a step goes, warm-up epochs included", "step, warm-up included");
    bench_fixture_close(&b);
}
END_TEST

/* All strategies and their variants, with one network and one global batch. */
START_TEST(bench_modes_has_every_mode)
{
    char text[BENCH_CASE_BYTES], want[BENCH_CASE_BYTES];
    json_t *notes = json_array();
    bench_cases cases = cases_of("bench modes --peer torch --device cpu", notes);
    int n = 0;
    for (int i = 0; i < cases.count; i++) {
        const bench_case *c = &cases.list[i];
        if (c->torch) {
            ck_assert(bench_case_mode(c).has_peer);
            continue;
        }
        bench_mode mode = bench_case_mode(c);
        ck_assert_ptr_nonnull(mode.advice);
        ck_assert_msg(strncmp(mode.advice, "take it ", 8) == 0, "%s: %s", mode.name, mode.advice);
        ck_assert_int_lt((int)strlen(mode.advice), BENCH_WHY_BYTES);
        bench_case_name(c, text);
        snprintf(want, sizeof want, "%s x %d, cnn, batch 64", mode.name,
                 c->mode == STRATEGY_SINGLE ? 1 : 2);
        ck_assert_str_eq(text, want);
        n++;
    }
    ck_assert_int_eq(n, STRATEGY_COUNT + BENCH_VARIANTS);
    char *told = json_dumps(notes, 0);
    ASSERT_FACTS(told, "torch dp is left out", "torch ps is left out",
                 "torch powersgd is left out");
    ASSERT_SILENT(told, "torch zero1");
    ASSERT_SILENT(told, "torch pipeline");
    free(told);
    bench_cases_free(&cases);
    json_decref(notes);
}
END_TEST

START_TEST(what_is_for_the_cpu_is_left_out_on_gpus)
{
    bench_cases cases;
    options opts = command_line_options("bench modes --modes ddp,ddp-bf16");
    json_t *notes = json_array();
    ck_assert(bench_cases_make(&opts, true, &cases, notes) == STATUS_OK);
    assert_case(&cases, 0, "ddp x 2, cnn, batch 64", true, false);
    ck_assert_int_eq(cases.count, 1);
    ASSERT_FACTS(json_string_value(json_array_get(notes, 0)), "ddp-bf16", "--comm-hook=bf16",
                 "CPU");
    bench_cases_free(&cases);
    options_free(&opts);
    json_decref(notes);
}
END_TEST

/* A rank's batch, or that of all; and the flags of a variant. */
START_TEST(the_peer_is_told_the_mode)
{
    static const char *const WANT[][3] = {{"--mode=zero1", "--batch-size=32", "--model=mlp"},
                                          {"--mode=pipeline", "--batch-size=64", "--model=mlp"},
                                          {"--mode=ddp", "--batch-size=32", "--comm-hook=bf16"}};
    char line[BENCH_COMMAND_BYTES];
    bench_words words;
    bench_fixture b;
    bench_fixture_open("bench modes --modes zero1,pipeline,ddp-bf16 --models mlp", &b);
    for (size_t i = 0; i < COUNT(WANT); i++) {
        b.cases.list[i].torch = true;
        bench_commands_make(&b.commands, &b.cases.list[i], &words);
        bench_words_line(&words, line, sizeof line);
        ASSERT_FACTS(line, "torch.distributed.run", "--nproc_per_node=2", WANT[i][0], WANT[i][1],
                     WANT[i][2]);
    }
    bench_fixture_close(&b);
}
END_TEST

/* 3 ms a step of ddp on two devices, 3.5 on one, 4 of dp and ps; losses as the runs leave them. */
START_TEST(modes_are_compared_with_ddp)
{
    static const struct {
        const char *mode;
        int world;
        double times, minus;
    } WANT[] = {{"ddp", 2, 1, 0},
                {"single", 1, 3 / 3.5, 0},
                {"dp", 2, 3.0 / 4, 0},
                {"ps", 2, 3.0 / 4, 1e-7},
                {"ddp-bf16", 2, 1, 0.25}};
    bench_fixture b;
    bench_fixture_open("bench modes --models mlp --repeats 7 --steps 10", &b);
    dp_vs_ddp_measure(&b.commands, &b.place, &b.rows);
    dp_vs_ddp_document(&b.commands, &b.rows, b.notes, b.document);
    for (size_t i = 0; i < COUNT(WANT); i++) {
        json_t *row = bench_fixture_row(&b, WANT[i].mode, WANT[i].world, 64);
        json_t *times = json_object_get(row, "times_ddp");
        ck_assert_double_eq_tol(bench_fixture_number(times, "median"), WANT[i].times, 0.01);
        ck_assert_int_eq(json_integer_value(json_object_get(times, "pairs")), 7);
        ck_assert_double_eq_tol(bench_fixture_number(row, "train_loss_minus_ddp"), WANT[i].minus,
                                1e-12);
    }
    json_t *row = bench_fixture_row(&b, "ddp-bf16", 2, 64);
    ASSERT_FACTS(json_string_value(json_object_get(row, "command")), "--comm-hook=bf16");
    ASSERT_SILENT(json_string_value(json_object_get(row, "command")), "--mode=");
    row = bench_fixture_row(&b, "ps-async", 2, 64); /* a step is of one rank's batch */
    ASSERT_FACTS(json_string_value(json_object_get(row, "command")), "--mode=ps", "--async",
                 " --batch-size=64");
    char heads[1024];
    read_heads(&b, 0, heads, sizeof heads);
    ASSERT_FACTS(heads, "ddp", "95 % interval", "exposed", "% of step");
    read_heads(&b, 1, heads, sizeof heads);
    ASSERT_FACTS(heads, "busiest", "peak MiB", "loss", "minus ddp's");
    bench_fixture_close(&b);
}
END_TEST

/* Without ddp there is nothing to compare with, and no row fails for it. */
START_TEST(modes_without_ddp_have_no_ratio)
{
    bench_fixture b;
    bench_fixture_open("bench modes --modes zero1 --models mlp --repeats 1 --steps 2", &b);
    dp_vs_ddp_measure(&b.commands, &b.place, &b.rows);
    dp_vs_ddp_document(&b.commands, &b.rows, b.notes, b.document);
    json_t *row = bench_fixture_row(&b, "zero1", 2, 64);
    ck_assert(json_is_null(json_object_get(json_object_get(row, "times_ddp"), "median")));
    ck_assert(json_is_null(json_object_get(row, "train_loss_minus_ddp")));
    bench_fixture_close(&b);
}
END_TEST

static const char *const PRINTED[] = {
    "bench dp-vs-ddp --world-sizes 1,2,4 --repeats 7 --steps 3",
    "bench modes --world-sizes 2,4 --repeats 7 --steps 3",
};

START_TEST(all_that_it_prints_fits_a_terminal)
{
    bench_fixture b;
    bench_fixture_open(PRINTED[_i], &b);
    dp_vs_ddp_measure(&b.commands, &b.place, &b.rows);
    dp_vs_ddp_document(&b.commands, &b.rows, b.notes, b.document);
    FILE *out = fopen(test_folder_path("printed"), "w");
    report_print(b.document, out);
    fclose(out);
    char *text = test_folder_read("printed");
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
        ck_assert_msg(strlen(line) <= 80, "more than 80 columns: %s", line);
    free(text);
    bench_fixture_close(&b);
}
END_TEST

/* Instead of the C library's, in this test. Others of the program get what it would say. */
static double load_average = (double)NAN;
int getloadavg(double *averages, int n)
{
    int (*real)(double *, int) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "getloadavg");
    if (isnan(load_average))
        return real(averages, n);
    averages[0] = load_average;
    return n > 0 ? 1 : 0;
}

START_TEST(a_busy_machine_is_told)
{
    json_t *document = report_create(&(report_head){"benchmark", "x", "x", 0, NULL});
    load_average = 0.1;
    bench_say_if_busy(document);
    char *quiet = json_dumps(document, 0);
    ASSERT_SILENT(quiet, "load average");
    load_average = 1000;
    bench_say_if_busy(document);
    char *busy = json_dumps(document, 0);
    ASSERT_FACTS(busy, "other programs were running", "load average 1000.0");
    free(quiet);
    free(busy);
    json_decref(document);
}
END_TEST

/* A B C A B C: a slow minute of the machine hits all. Each in its own way says what it needs. */
START_TEST(repeats_are_interleaved)
{
    bench_fixture b;
    char *log = NULL, *at;
    bench_fixture_open(
        "bench dp-vs-ddp --models cnn --world-sizes 2 --scaling strong --repeats 2 --steps 3 "
        "--warmup 2 --lr 0.5 --backend gloo --seed 9",
        &b);
    dp_vs_ddp_measure(&b.commands, &b.place, &b.rows);
    log = test_folder_read("fake.sh.log");
    at = log;
    for (int i = 0; i < 6; i++) {
        static const char *const WANT[] = {
            "train --mode=single --batch-size=64 --model=cnn",
            "train --mode=dp --batch-size=64 --replicas=2 --model=cnn",
            "train --nproc-per-node=2 --backend=gloo --global-batch-size=64 --model=cnn"};
        ck_assert_msg(strncmp(at, WANT[i % 3], strlen(WANT[i % 3])) == 0, "run %d: %s", i, at);
        at = strchr(at, '\n') + 1;
    }
    ck_assert(*at == '\0');
    ASSERT_FACTS(log, "--lr=0.5", "--epochs=3", "--limit=192", "--seed=9", "--threads=1",
                 "--no-save-model", "--json", "--quiet");
    free(log);
    bench_fixture_close(&b);
}
END_TEST

START_TEST(a_failing_case_is_given_up)
{
    bench_fixture b;
    setenv("FAKE_FAILS", "dp2", 1);
    bench_fixture_open(
        "bench dp-vs-ddp --models mlp --world-sizes 2 --scaling weak --repeats 5 --steps 3", &b);
    dp_vs_ddp_measure(&b.commands, &b.place, &b.rows);
    dp_vs_ddp_document(&b.commands, &b.rows, b.notes, b.document);
    char *log = test_folder_read("fake.sh.log");
    int tried = 0;
    for (const char *at = log; (at = strstr(at, "--mode=dp")) != NULL; at++)
        tried++;
    ck_assert_int_eq(tried, 2);
    free(log);
    json_t *row = bench_fixture_row(&b, "dp", 2, 128),
           *speed = json_object_get(row, "images_per_s");
    ck_assert(json_is_null(json_object_get(speed, "median")));
    ASSERT_FACTS(json_string_value(json_object_get(row, "failure")), "exit code 65",
                 "no such device");
    ck_assert(json_is_null(json_object_get(row, "why")));
    row = bench_fixture_row(&b, "ddp", 2, 128);
    speed = json_object_get(row, "images_per_s");
    ck_assert_int_eq(json_integer_value(json_object_get(speed, "n")), 5);
    ck_assert(json_is_null(json_object_get(speed, "low"))); /* n too small */
    bench_fixture_close(&b);
}
END_TEST

/* PyTorch's rows count only where they learn: the fake's accuracy is 93 %, and then 80 %. */
START_TEST(a_pytorch_row_without_accuracy_is_not_counted)
{
    bench_fixture b;
    bench_fixture_open(
        "bench dp-vs-ddp --models mlp --world-sizes 2 --scaling weak --repeats 2 --steps 3 "
        "--modes ddp",
        &b);
    bench_case torch = b.cases.list[0];
    torch.torch = true;
    b.cases.list[0] = torch;
    snprintf(b.commands.python, sizeof b.commands.python, "%s", test_folder_path("learns.sh"));
    snprintf(b.commands.script, sizeof b.commands.script, "peer.py");
    static const char SCRIPT[] = "#!/bin/sh\necho \"$*\" >>\"$0.log\"\n"
                                 "acc=$(cat \"$0.acc\")\n"
                                 "echo \"{\\\"train_s\\\":[1,1],\\\"images_per_epoch\\\":384,"
                                 "\\\"test_acc\\\":$acc,\\\"last_loss\\\":0.1,\\\"train_loss\\\":0."
                                 "2,\\\"state_mib\\\":[8,9]}\"\n";
    file_part part = {SCRIPT, sizeof SCRIPT - 1}, good = {"0.93", 4}, bad = {"0.80", 4};
    test_folder_require(file_replace(b.commands.python, &part, 1));
    ck_assert_int_eq(chmod(b.commands.python, 0700), 0);
    test_folder_require(file_replace(test_folder_path("learns.sh.acc"), &good, 1));
    dp_vs_ddp_measure(&b.commands, &b.place, &b.rows);
    ck_assert_int_eq(bench_row_samples(&b.rows, 0), 2);
    ck_assert_double_eq_tol(bench_row_median(&b.rows, 0, BENCH_FIELD(images_per_s)), 384, 1e-9);
    ck_assert(bench_row_median(&b.rows, 0, BENCH_FIELD(train_loss)) == 0.2);
    ck_assert(bench_row_median(&b.rows, 0, BENCH_FIELD(state_mib)) == 9);
    ASSERT_FACTS(b.rows.list[0].command,
                 "learns.sh -m torch.distributed.run --standalone --nproc_per_node=2 peer.py",
                 "--mode=ddp", "--model=mlp", "--batch-size=64");
    b.rows.list[0].samples[0].counts = b.rows.list[0].samples[1].counts = false;
    test_folder_require(file_replace(test_folder_path("learns.sh.acc"), &bad, 1));
    dp_vs_ddp_measure(&b.commands, &b.place, &b.rows);
    ck_assert_int_eq(bench_row_samples(&b.rows, 0), 0);
    ASSERT_FACTS(b.rows.list[0].failure, "loss 0.1", "accuracy 80.0 %");
    bench_fixture_close(&b);
}
END_TEST

START_TEST(a_plot_has_its_data)
{
    static const char *const names[] = {"dp-vs-ddp-speed-mlp-64-strong",
                                        "dp-vs-ddp-phases-mlp-64-strong",
                                        "dp-vs-ddp-traffic-mlp-64-strong"};
    bench_fixture b;
    bench_fixture_open("bench dp-vs-ddp --models mlp --modes single --repeats 1 --steps 3", &b);
    dp_vs_ddp_measure(&b.commands, &b.place, &b.rows);
    dp_vs_ddp_plots(&b.rows, b.document);
    const json_t *plots = json_object_get(json_object_get(b.document, "report"), "plots");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        ck_assert_str_eq(json_string_value(json_object_get(json_array_get(plots, i), "name")),
                         names[i]);
    const json_t *speed = json_array_get(json_object_get(json_array_get(plots, 0), "series"), 0);
    ck_assert_str_eq(json_string_value(json_object_get(speed, "name")), "single");
    const json_t *point = json_array_get(json_object_get(speed, "points"), 0);
    ck_assert_int_eq((int)json_integer_value(json_array_get(point, 0)), 1);
    ck_assert_double_eq_tol(json_number_value(json_array_get(point, 1)) /
                                bench_row_median(&b.rows, 0, BENCH_FIELD(images_per_s)),
                            1, 1e-5);
    ck_assert(json_is_null(json_array_get(point, 2))); /* one run has no interval */
    bench_fixture_close(&b);
}
END_TEST

/* A whole command with real runs: ddp on one and two ranks. */
START_TEST(real_runs_are_compared)
{
    program p =
        program_mnist("bench", "dp-vs-ddp", "--modes", "ddp", "--models", "mlp", "--world-sizes",
                      "1,2", "--batch-sizes", "16", "--repeats", "2", "--steps", "4", "--optimizer",
                      "sgd", "--lr", "0.1", "--out", test_folder_path("real"), "--json", NULL);
    ASSERT_EXIT(p, 0);
    json_t *line = json_loads(p.out, 0, NULL);
    ck_assert_ptr_nonnull(line);
    ck_assert_uint_eq(json_array_size(json_object_get(line, "rows")), 3);
    json_t *row = json_array_get(json_object_get(line, "rows"), 2);
    ck_assert(bench_fixture_number(json_object_get(row, "images_per_s"), "median") > 0);
    ck_assert(bench_fixture_number(row, "efficiency_weak") > 0);
    ck_assert(!json_is_true(json_object_get(line, "interrupted")));
    json_decref(line);
    ASSERT_FACTS(p.err, "2 of 2", "6 of 6");
    ASSERT_FACTS(p.err, "ddp", "2", "mlp", "too small"); /* two runs have no interval */
    ck_assert(file_exists(test_folder_path("real/dp-vs-ddp.json")));
    ck_assert(file_exists(test_folder_path("real/report.html")));
    program_close(&p);
}
END_TEST

/* All strategies do the same work, and have the same loss but for rounding; 16 bits are seen. */
START_TEST(real_modes_lose_as_ddp_does)
{
    program p = program_mnist("bench", "modes", "--models", "mlp", "--batch-sizes", "16",
                              "--repeats", "1", "--steps", "4", "--warmup", "0", "--out",
                              test_folder_path("modes"), "--json", "--quiet", NULL);
    ASSERT_EXIT(p, 0);
    json_t *line = json_loads(p.out, 0, NULL), *row;
    size_t i;
    ck_assert_uint_eq(json_array_size(json_object_get(line, "rows")),
                      STRATEGY_COUNT + BENCH_VARIANTS);
    json_array_foreach(json_object_get(line, "rows"), i, row)
    {
        const char *mode = json_string_value(json_object_get(row, "mode"));
        double beside = fabs(bench_fixture_number(row, "train_loss_minus_ddp"));
        if (strategy_named(mode) != NULL)
            ck_assert_msg(beside < 1e-6, "%s: %g", mode, beside);
        if (strcmp(mode, "ddp-bf16") == 0)
            ck_assert_msg(beside > 1e-6, "%s: %g", mode, beside);
    }
    json_decref(line);
    ck_assert(file_exists(test_folder_path("modes/modes.json")));
    program_close(&p);
}
END_TEST

/* Without --out, beside the folders of training runs. */
START_TEST(what_it_leaves_has_a_folder_in_runs)
{
    glob_t found;
    program p =
        program_mnist("bench", "dp-vs-ddp", "--modes", "ddp", "--models", "mlp", "--world-sizes",
                      "1", "--batch-sizes", "16", "--repeats", "1", "--steps", "2", NULL);
    ASSERT_EXIT(p, 0);
    ck_assert_int_eq(glob("runs/*-bench-dp-vs-ddp/report.html", 0, NULL, &found), 0);
    ck_assert_uint_eq(found.gl_pathc, 1);
    ck_assert_msg(strstr(p.out, found.gl_pathv[0]) != NULL, "no %s in %s", found.gl_pathv[0],
                  p.out);
    ck_assert(!file_exists("bench"));
    globfree(&found);
    program_close(&p);
}
END_TEST

/* Ctrl-C ends the run under way, and what was measured before it is there. */
START_TEST(a_stop_keeps_what_was_measured)
{
    const char *const argv[] = {program_mnist_ddp(),
                                "bench",
                                "dp-vs-ddp",
                                "--modes",
                                "ddp",
                                "--models",
                                "mlp",
                                "--world-sizes",
                                "1",
                                "--batch-sizes",
                                "16",
                                "--repeats",
                                "500",
                                "--steps",
                                "4",
                                "--out",
                                test_folder_path("stopped"),
                                NULL};
    program p = program_start(argv);
    bool seen = false;
    for (int i = 0; i < 3000 && !seen; i++) {
        clock_sleep_ms(10);
        char *said = program_peek(&p);
        seen = facts_in_a_line(said, "2 of 500", NULL);
        free(said);
    }
    kill(p.pid, SIGINT);
    program_wait(&p, 60);
    ASSERT_EXIT(p, 130);
    ASSERT_FACTS(p.out, "signal");
    ASSERT_FACTS(p.out, "ddp", "1", "mlp");
    json_t *document = json_load_file(test_folder_path("stopped/dp-vs-ddp.json"), 0, NULL);
    ck_assert(json_is_true(json_object_get(document, "interrupted")));
    json_decref(document);
    ck_assert(file_exists(test_folder_path("stopped/report.html")));
    program_close(&p);
}
END_TEST

/* Nobody reads its stdout, or its stderr: a signal ends it all the same. */
START_TEST(a_signal_ends_a_benchmark_with_a_full_pipe)
{
    full_pipe pager;
    full_pipe_open(&pager);
    test_folder_remove("full");
    program p =
        full_pipe_start(&pager, _i == 0 ? STDOUT_FILENO : STDERR_FILENO,
                        WORDS(program_mnist_ddp(), "bench", "dp-vs-ddp", "--modes", "ddp",
                              "--models", "mlp", "--world-sizes", "1", "--batch-sizes", "16",
                              "--repeats", "1", "--steps", "2", "--out", test_folder_path("full")));
    if (_i == 0)
        test_folder_await(test_folder_path("full/report.html")); /* printing comes next */
    clock_sleep_ms(500);
    int64_t start_ns = clock_now_ns();
    kill(p.pid, SIGTERM);
    program_wait(&p, 20);
    ASSERT_EXIT(p, 143);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5.0);
    program_close(&p);
    full_pipe_close(&pager);
}
END_TEST

START_TEST(mistakes_end_before_anything_runs)
{
    program p = program_mnist("bench", "dp-vs-ddp", "--modes", "dpp", NULL);
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "--modes", "'dpp'", "single", "ddp", "ps");
    program_close(&p);
    p = program_mnist("bench", NULL);
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "bench", "dp-vs-ddp", "all-reduce", "scaling");
    program_close(&p);
    p = program_mnist("bench", "dp-vs-dpp", NULL);
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "'dp-vs-dpp'", "'dp-vs-ddp'");
    program_close(&p);
    p = program_mnist("bench", "dp-vs-ddp", "--modes", "ddp", "--world-sizes", "1", "--models",
                      "mlp", "--repeats", "2", "--device", "nothing", NULL);
    ck_assert_int_ne(p.exit_code, 0);
    ASSERT_FACTS(p.err, "nothing");
    program_close(&p);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench_dp_vs_ddp");
    test_folder_open();
    TCase *core = suite_case(suite, "core", WHOLE_S);
    tcase_add_test(core, every_case_is_there_once);
    tcase_add_test(core, the_peer_stands_beside_ours);
    tcase_add_loop_test(core, wrong_lists_are_refused, 0, COUNT(REFUSED));
    tcase_add_test(core, figures_are_those_of_the_runs);
    tcase_add_test(core, a_step_with_the_warm_up_says_so);
    tcase_add_test(core, bench_modes_has_every_mode);
    tcase_add_test(core, what_is_for_the_cpu_is_left_out_on_gpus);
    tcase_add_test(core, the_peer_is_told_the_mode);
    tcase_add_test(core, modes_are_compared_with_ddp);
    tcase_add_test(core, modes_without_ddp_have_no_ratio);
    tcase_add_loop_test(core, all_that_it_prints_fits_a_terminal, 0, COUNT(PRINTED));
    tcase_add_test(core, a_busy_machine_is_told);
    tcase_add_test(core, repeats_are_interleaved);
    tcase_add_test(core, a_failing_case_is_given_up);
    tcase_add_test(core, a_pytorch_row_without_accuracy_is_not_counted);
    tcase_add_test(core, a_plot_has_its_data);
    tcase_add_test(core, real_runs_are_compared);
    tcase_add_test(core, real_modes_lose_as_ddp_does);
    tcase_add_test(core, what_it_leaves_has_a_folder_in_runs);
    tcase_add_test(core, a_stop_keeps_what_was_measured);
    tcase_add_loop_test(core, a_signal_ends_a_benchmark_with_a_full_pipe, 0, 2);
    tcase_add_test(core, mistakes_end_before_anything_runs);
    return test_folder_close(suite_run(suite));
}
