/* mnist_ddp bench all-reduce, broadcast, ..., as a user starts them. */
#include "tests/app/support/test_folder.h"
#include "tests/app/support/training.h"
#include "tests/support/facts.h"
#include "tests/support/program.h"
#include "tests/support/suite.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { LIMIT_S = 120 };

static program bench(const char *ranks, const char *backend, const char *more)
{
    const char *argv[] = {program_mnist_ddp(),
                          "bench",
                          "all-reduce",
                          "--nproc-per-node",
                          ranks,
                          "--backend",
                          backend,
                          "-b",
                          "4",
                          "-e",
                          "256K",
                          "-f",
                          "64",
                          "-n",
                          "3",
                          "-w",
                          "1",
                          "--device",
                          "cpu",
                          more,
                          NULL};
    program p = program_start(argv);
    program_wait(&p, LIMIT_S);
    return p;
}

static const char *const RANKS[] = {"1", "2", "3"};
static const char *const BACKENDS[] = {"auto", "gloo"};

/* 4 B, 256 B, 16 KiB, 1 MiB is too large. */
static void check_rows(const json_t *rows, int world)
{
    static const double sizes[] = {4, 256, 16384};
    static const char *const ways[] = {"out_of_place", "in_place"};
    ck_assert_uint_eq(json_array_size(rows), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(rows, i);
        ck_assert_double_eq(json_number_value(json_object_get(row, "bytes")), sizes[i]);
        ck_assert_double_eq(json_number_value(json_object_get(row, "count")), sizes[i] / 4);
        for (int way = 0; way < 2; way++) {
            const json_t *time = json_object_get(row, ways[way]);
            double us = json_number_value(json_object_get(time, "time_us"));
            double algbw = json_number_value(json_object_get(time, "algbw"));
            double busbw = json_number_value(json_object_get(time, "busbw"));
            ck_assert_double_gt(us, 0);
            double last_digits = algbw * 6e-4 / us + 1e-4; /* us to 1e-3, GB/s to 1e-4 */
            ck_assert_double_eq_tol(algbw, sizes[i] / us * 1e-3, last_digits);
            ck_assert_double_eq_tol(busbw, algbw * 2 * (world - 1) / world, 2e-4);
            ck_assert_int_eq(json_integer_value(json_object_get(time, "wrong")), 0);
        }
    }
}

START_TEST(json_has_every_size)
{
    const char *ranks = RANKS[_i % 3], *backend = BACKENDS[_i / 3];
    program p = bench(ranks, backend, "--json");
    ck_assert_msg(p.exit_code == 0, "%s ranks, %s: %d: %s", ranks, backend, p.exit_code, p.err);
    json_t *line = json_loads(p.out, 0, NULL);
    ck_assert_msg(line != NULL, "not JSON: %s", p.out);
    ck_assert_int_eq(json_integer_value(json_object_get(line, "world")), atoi(ranks));
    check_rows(json_object_get(line, "rows"), atoi(ranks));
    ck_assert_ptr_nonnull(strstr(p.err, "#wrong")); /* the table is on stderr then */
    ASSERT_FACTS(p.err, "backend", json_string_value(json_object_get(line, "backend")));
    json_decref(line);
    program_close(&p);
}
END_TEST

START_TEST(the_table_has_the_columns_of_nccl_tests)
{
    program p = bench("2", "shm", NULL);
    ck_assert_int_eq(p.exit_code, 0);
    static const char *const words[] = {"size", "count", "type",   "redop",       "root",
                                        "time", "algbw", "busbw",  "#wrong",      "(B)",
                                        "(us)", "float", "(GB/s)", "out-of-place"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        ck_assert_msg(strstr(p.out, words[i]) != NULL, "no '%s' in: %s", words[i], p.out);
    const char *row = strstr(p.out, "\n      16384");
    char type[16], redop[16];
    long bytes, count, root;
    double time[6];
    long wrong[2];
    ck_assert_ptr_nonnull(row);
    ck_assert_int_eq(sscanf(row, "%ld %ld %15s %15s %ld %lf %lf %lf %ld %lf %lf %lf %ld", &bytes,
                            &count, type, redop, &root, &time[0], &time[1], &time[2], &wrong[0],
                            &time[3], &time[4], &time[5], &wrong[1]),
                     13);
    ck_assert_int_eq(count, 4096);
    for (char *line = strtok(p.out, "\n"); line != NULL; line = strtok(NULL, "\n"))
        ck_assert_msg(strlen(line) <= 100, "more than 100 columns: %s", line);
    program_close(&p);
}
END_TEST

/* As FlagPerf's and SuperBench's parsers of nccl-tests' output read it: the last word of a line,
 * and the sixth word from the right of each line between two marks. */
static const char PARSERS[] =
    "\"$0\" bench $1 --nproc-per-node=3 --backend=shm -b1K -e4K -f4 -n2 -w1 --device=cpu > \"$2\"\n"
    "grep '# Avg bus bandwidth' \"$2\" | awk '{print $NF}'\n"
    "awk '/out-of-place/ {first = NR + 3} /Out of bounds values/ {last = NR - 1} {line[NR] = $0}\n"
    "END {for (i = first; i <= last; i++) {n = split(line[i], word); print word[n - 5]}}' \"$2\"\n"
    "tail -n 6 \"$2\"";

static const char *const OPERATIONS[] = {"all-reduce", "broadcast",      "reduce",
                                         "all-gather", "reduce-scatter", "gather",
                                         "scatter",    "all-to-all",     "send-recv"};

START_TEST(parsers_of_nccl_tests_read_it)
{
    const char *name = OPERATIONS[_i];
    const char *argv[] = {"sh", "-c", PARSERS, program_mnist_ddp(), name, test_folder_path("said"),
                          NULL};
    program p = program_start(argv);
    program_wait(&p, LIMIT_S);
    ck_assert_msg(p.exit_code == 0, "%s: %s", name, p.err);
    char expected[256], *at = p.out, mean[32] = "";
    snprintf(mean, sizeof mean, "%.*s", (int)strcspn(p.out, "\n"), p.out);
    for (int i = 0; i < 3; i++) { /* the mean and two sizes */
        char *end = NULL;
        ck_assert_msg(strtod(at, &end) >= 0 && end > at && *end == '\n', "%s, number %d: %s", name,
                      i, p.out);
        at = end + 1;
    }
    snprintf(expected, sizeof expected,
             "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : %s \n#\n"
             "# Collective test concluded: %s\n\n#\n",
             mean, name);
    ck_assert_str_eq(at, expected);
    program_close(&p);
}
END_TEST

static const struct {
    const char *words[3];
    const char *facts[4]; /* in the one line of error */
} REFUSED[] = {
    {{"all-reduce", "-b", "x"}, {"--minbytes", "'x'", "64K"}},
    {{"all-reduce", "-b", "0"}, {"--minbytes", "'0'"}},
    {{"all-reduce", "-e", "9999G"}, {"--maxbytes", "9999G", "1024G"}},
    {{"all-reduce", "-e", "4"}, {"--minbytes=8", "--maxbytes=4"}},
    {{"all-reduce", "-f", "1"}, {"--stepfactor=1"}},
    {{"all-reduce", "--repeats", "2"}, {"--repeats", "bench all-reduce"}},
    {{"scaling", "--hold-out", "3"}, {"--hold-out", "bench/scaling.py", "holds out"}},
    {{"scaling", "--project-ranks", "3"}, {"--project-ranks", "bench/scaling.py"}},
    {{"scaling", "-n", "3"}, {"--iters", "bench all-reduce", "'scaling'"}},
    {{"scaling", "--nproc-per-node", "2"}, {"--nproc-per-node", "--world-sizes"}},
    {{"all-reduce", "--seed", "2"}, {"--seed", "bench all-reduce"}},
    {{"scaling", "--peer", "torch"}, {"--peer", "bench scaling"}},
    {{"dp-vs-ddp", "--peer", "mpi"}, {"--peer", "mpi", "torch"}},
    {{"broadcast", "--root", "1"}, {"--root=1", "0"}},
    {{"all-reduce", "-d", "int4"}, {"--datatype", "'int4'", "bfloat16"}},
    {{"all-reduce", "--backend", "shm,,gloo"}, {"--backend", "shm,gloo"}},
    {{"all-reduce", "--backend", "shm,glo"}, {"backend", "glo"}},
    {{"scalin", "-n", "3"}, {"'scalin'", "'scaling'"}},
};

START_TEST(wrong_flags_are_one_error)
{
    const char *argv[] = {program_mnist_ddp(),  "bench", REFUSED[_i].words[0], REFUSED[_i].words[1],
                          REFUSED[_i].words[2], NULL};
    program p = program_start(argv);
    program_wait(&p, LIMIT_S);
    ck_assert_int_eq(p.exit_code, 64);
    ASSERT_FACTS_LISTED(p.err, REFUSED[_i].facts);
    ck_assert_msg(strchr(p.err, '\n') == p.err + strlen(p.err) - 1, "one line: %s", p.err);
    program_close(&p);
}
END_TEST

START_TEST(what_was_not_looked_at_is_not_right)
{
    program p = bench("2", "shm", "--check=0");
    ck_assert_int_eq(p.exit_code, 0);
    ASSERT_FACTS(p.out, "Out of bounds values", "N/A");
    ASSERT_NO_FACTS(p.out, "OK");
    program_close(&p);
}
END_TEST

/* The reason is its error, and not the hint after that. */
START_TEST(why_a_backend_is_left_out_is_told)
{
    program p = bench("2", "shm,gloo", "--root=7");
    ck_assert_int_ne(p.exit_code, 0);
    ASSERT_FACTS(p.err, "shm is left out", "--root=7: ranks are 0 to 1");
    program_close(&p);
}
END_TEST

START_TEST(a_comparison_that_is_stopped_says_so)
{
    const char *argv[] = {program_mnist_ddp(),
                          "bench",
                          "barrier",
                          "--nproc-per-node",
                          "2",
                          "--backend",
                          "shm,gloo",
                          "-n",
                          "1000000",
                          "-w",
                          "1000000",
                          "--device",
                          "cpu",
                          NULL};
    program p = program_start(argv);
    usleep(700000);
    kill(p.pid, SIGTERM);
    program_wait(&p, LIMIT_S);
    ck_assert_int_eq(p.exit_code, 128 + SIGTERM);
    program_close(&p);
}
END_TEST

static json_t *compared(const char *folder, const char *peer, const char *python)
{
    const char *argv[] = {program_mnist_ddp(),
                          "bench",
                          "all-reduce",
                          "--nproc-per-node",
                          "2",
                          "--backend",
                          "shm,shm",
                          "--peer",
                          peer,
                          "--peer-python",
                          python,
                          "-b",
                          "1K",
                          "-e",
                          "8K",
                          "-f",
                          "8",
                          "-n",
                          "3",
                          "-w",
                          "1",
                          "--device",
                          "cpu",
                          "--json",
                          "--out",
                          folder,
                          NULL};
    program p = program_start(argv);
    program_wait(&p, LIMIT_S);
    ck_assert_msg(p.exit_code == 0, "%d: %s", p.exit_code, p.err);
    json_t *line = json_loads(p.out, 0, NULL);
    ck_assert_msg(line != NULL, "not JSON: %s", p.out);
    program_close(&p);
    return line;
}

/* The names of what was measured, each with two rows, and one table for each way. */
static void check_systems(const json_t *line, const char *const *names, size_t n)
{
    const json_t *systems = json_object_get(line, "systems");
    ck_assert_uint_eq(json_array_size(systems), n);
    for (size_t i = 0; i < n; i++) {
        const json_t *system = json_array_get(systems, i);
        ck_assert_str_eq(json_string_value(json_object_get(system, "name")), names[i]);
        ck_assert_uint_eq(json_array_size(json_object_get(system, "rows")), 2);
    }
    const json_t *tables = json_object_get(json_object_get(line, "report"), "tables");
    ck_assert_uint_eq(json_array_size(tables), 2);
}

START_TEST(backends_stand_side_by_side)
{
    json_t *line = compared(test_folder_path("figures"), "none", "python3");
    check_systems(line, (const char *const[]){"shm", "shm"}, 2);
    ck_assert_int_eq(access(test_folder_path("figures/report.html"), R_OK), 0);
    json_decref(line);
}
END_TEST

/* With --out the bandwidths stay, and what was chosen heads the columns. */
START_TEST(bench_out_keeps_the_printed_bandwidths)
{
    const char *argv[] = {program_mnist_ddp(),
                          "bench",
                          "all-reduce",
                          "--nproc-per-node=2",
                          "-e8",
                          "-n2",
                          "--device=cpu",
                          "--out",
                          test_folder_path("paged"),
                          NULL};
    program p = program_start(argv);
    program_wait(&p, LIMIT_S);
    ck_assert_int_eq(p.exit_code, 0);
    ASSERT_FACTS(p.out, "bench all-reduce: 2 ranks", "backend shm");
    ASSERT_FACTS(p.out, "time", "algbw", "busbw", "#wrong");
    ASSERT_FACTS(p.out, "# Avg bus bandwidth");
    ASSERT_FACTS(p.out, "     shm");
    ASSERT_FACTS(p.out, "paged/report.html");
    ASSERT_NO_FACTS(p.out, "auto");
    program_close(&p);
}
END_TEST

START_TEST(mpi_stands_beside_them)
{
    json_t *line = compared(test_folder_path("beside"), "mpi", "python3");
    check_systems(line, (const char *const[]){"shm", "shm", "Open MPI"}, 3);
    ck_assert_int_ne(access(test_folder_path("beside/mpi_collective"), F_OK), 0);
    json_decref(line);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench_collective");
    TCase *core = suite_case(suite, "core", LIMIT_S);
    for (int i = 0; i < 6; i++)
        suite_add(core, json_has_every_size, i,
                  i < 3 || training_has_gloo() ? NULL : "gloo is not in this build");
    tcase_add_test(core, the_table_has_the_columns_of_nccl_tests);
    tcase_add_loop_test(core, parsers_of_nccl_tests_read_it, 0,
                        sizeof OPERATIONS / sizeof OPERATIONS[0]);
    tcase_add_test(core, bench_out_keeps_the_printed_bandwidths);
    tcase_add_test(core, what_was_not_looked_at_is_not_right);
    tcase_add_test(core, why_a_backend_is_left_out_is_told);
    tcase_add_test(core, a_comparison_that_is_stopped_says_so);
    tcase_add_test(core, backends_stand_side_by_side);
    suite_add(core, mpi_stands_beside_them, 0,
              system("command -v mpicc mpirun > /dev/null") == 0 ? NULL : "no mpicc");
    tcase_add_loop_test(core, wrong_flags_are_one_error, 0, sizeof REFUSED / sizeof REFUSED[0]);
    test_folder_open();
    return test_folder_close(suite_run(suite));
}
