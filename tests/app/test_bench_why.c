/* The sentence that says why a run is as fast as it is, from made-up phases. */
#include "app/bench/bench.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define UNKNOWN ((double)NAN)

/* 10 ms of a step, in ms, in the order of moment: data, broadcast, scatter, forward, gather,
 * backward, reduce, waiting, optimizer, accelerator. */
typedef struct made_up {
    strategy_kind mode;
    int world, cores;
    double phase_ms[N_PHASES];
    double comm_total_ms;
    double base_ms;     /* forward and backward of the whole batch of 64 on one device alone */
    const char *facts;  /* parted by '|': what the sentence says */
    const char *silent; /* what it does not; NULL */
} made_up;

static const made_up CASES[] = {
    /* the master's traffic, largest part first */
    {STRATEGY_DP,
     2,
     2,
     {0.1, 2, 0.3, 2, 0.5, 3.7, 1, 0.1, 0.3, 0},
     UNKNOWN,
     11.4,
     "master|38 %|replicas|broadcast 20 %, reduce 10 %, gather 5 %, scatter 3 %",
     "hidden"},
    {STRATEGY_PS,
     2,
     2,
     {0.1, 2, 0, 2, 0, 3.9, 1.6, 0.1, 0.3, 0},
     UNKNOWN,
     11.8,
     "master|36 %|ranks|broadcast 20 %, reduce 16 %",
     "scatter"},
    /* one device has no master to wait for */
    {STRATEGY_DP,
     1,
     2,
     {0.1, 2, 0, 2, 0, 3.9, 1.6, 0.1, 0.3, 0},
     UNKNOWN,
     6,
     "forward|backward|59 %",
     "master"},
    {STRATEGY_DP,
     2,
     2,
     {0.1, 0.2, 0, 2.9, 0, 4.5, 0.3, 0, 2, 0},
     UNKNOWN,
     14.8,
     "optimizer|master|20 %",
     "broadcast"},
    {STRATEGY_DDP,
     2,
     2,
     {0.1, 0, 0, 2.9, 0, 4.5, 0.5, 0, 2, 0},
     UNKNOWN,
     14.8,
     "every rank|optimizer|20 %",
     "master"},
    {STRATEGY_DDP,
     2,
     2,
     {0.1, 0, 0, 2, 0, 4, 3.5, 0, 0.4, 0},
     4,
     12,
     "all-reduce|35 %|backward",
     "hidden"},
    {STRATEGY_DDP,
     2,
     2,
     {0.1, 0, 0, 3.2, 0, 6, 0.2, 0, 0.5, 0},
     2,
     18.4,
     "all-reduce|hidden|backward|90 %|2 ms",
     "2 %"},
    /* hidden, but its total is not known: then nothing is said of it */
    {STRATEGY_DDP,
     2,
     2,
     {0.1, 0, 0, 3.2, 0, 6, 0.2, 0, 0.5, 0},
     UNKNOWN,
     18.4,
     "forward|backward|92 %",
     "all-reduce"},
    {STRATEGY_DP,
     2,
     2,
     {0.1, 0.2, 0, 2.5, 0, 4.5, 0.3, 2.1, 0.3, 0},
     UNKNOWN,
     14,
     "master|21 %|slower|replicas",
     "rank 0"},
    {STRATEGY_DDP,
     2,
     2,
     {0.1, 0, 0, 2.5, 0, 4.5, 0.3, 2.3, 0.3, 0},
     UNKNOWN,
     14,
     "rank 0|23 %|slower|ranks",
     "replicas"},
    /* 16 images in 9 ms; alone 64 in 18.95: 1.9 times as long per image */
    {STRATEGY_DDP,
     4,
     2,
     {0.1, 0, 0, 3, 0, 6, 0.4, 0, 0.5, 0},
     0.5,
     18.95,
     "4 ranks|2 cores|forward|backward|1.9 times",
     "16 images"},
    {STRATEGY_DDP, 4, 1, {0.1, 0, 0, 3, 0, 6, 0.4, 0, 0.5, 0}, 0.5, 18.95, "4 ranks|1 core", NULL},
    {STRATEGY_DDP,
     4,
     8,
     {0.1, 0, 0, 3, 0, 6, 0.4, 0, 0.5, 0},
     0.5,
     18.95,
     "16 images|forward|backward|1.9 times|64",
     "cores"},
    /* not notably slower: 1.2 times */
    {STRATEGY_DDP,
     4,
     2,
     {0.1, 0, 0, 3, 0, 6, 0.4, 0, 0.5, 0},
     0.5,
     30,
     "forward|backward|90 %",
     "cores"},
    {STRATEGY_SINGLE, 1, 2, {3, 0, 0, 2, 0, 4, 0, 0, 1, 0}, 0, 6, "batch|30 %", "optimizer"},
    {STRATEGY_SINGLE,
     1,
     2,
     {0, 0, 0, 0, 0, 0, 0, 0, 0.5, 9.5},
     UNKNOWN,
     UNKNOWN,
     "95 %|graph|GPU",
     "forward"},
    {STRATEGY_DDP,
     2,
     2,
     {UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN},
     UNKNOWN,
     UNKNOWN,
     "not known|phases",
     "%"},
    /* two causes, the larger one first */
    {STRATEGY_DP,
     4,
     2,
     {0.1, 2, 0.2, 1.5, 0.3, 3.5, 2, 0, 0.4, 0},
     UNKNOWN,
     10,
     "master|45 %|4 replicas|2 cores|2.0 times",
     NULL},
};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };

static bench_facts facts_of(const made_up *c)
{
    bench_facts f = {.mode = c->mode,
                     .world = c->world,
                     .global_batch = 64,
                     .threads = 1,
                     .cores = c->cores,
                     .step_s = 10e-3,
                     .comm_total_s = 1e-3 * c->comm_total_ms,
                     .base_compute_s = 1e-3 * c->base_ms / 64,
                     .base_batch = 64};
    for (int p = 0; p < N_PHASES; p++)
        f.phase_s[p] = 1e-3 * c->phase_ms[p];
    return f;
}

START_TEST(the_sentence_follows_the_rules)
{
    const made_up *c = &CASES[_i];
    char said[BENCH_WHY_BYTES], facts[512];
    bench_facts f = facts_of(c);
    bench_why(&f, said);
    snprintf(facts, sizeof facts, "%s", c->facts);
    for (char *fact = strtok(facts, "|"); fact != NULL; fact = strtok(NULL, "|"))
        ck_assert_msg(facts_in_a_line(said, fact, NULL), "\"%s\" lacks \"%s\"", said, fact);
    ck_assert_msg(c->silent == NULL || !facts_in_a_line(said, c->silent, NULL),
                  "\"%s\" says \"%s\"", said, c->silent);
}
END_TEST

START_TEST(the_larger_cause_comes_first)
{
    char said[BENCH_WHY_BYTES];
    bench_facts f = facts_of(&CASES[N_CASES - 1]);
    bench_why(&f, said);
    const char *larger = strstr(said, "45 %"), *smaller = strstr(said, "2.0 times");
    ck_assert_msg(larger != NULL && smaller != NULL && larger < smaller, "%s", said);
}
END_TEST

/* Whatever the numbers are, there is one sentence of one or two causes, and it ends. */
START_TEST(any_numbers_get_a_sentence)
{
    unsigned state = 7;
    char said[BENCH_WHY_BYTES];
    for (int i = 0; i < 20000; i++) {
        bench_facts f = {.step_s = 10e-3, .global_batch = 64, .base_batch = 64};
        f.mode = (strategy_kind)(i % STRATEGY_COUNT);
        f.world = 1 + i % 7;
        f.threads = 1 + i % 3;
        f.cores = 1 + i % 5;
        for (int p = 0; p < N_PHASES; p++) {
            state = state * 1664525u + 1013904223u;
            unsigned kind = state >> 29;
            f.phase_s[p] = kind == 0 ? UNKNOWN : kind == 1 ? 0 : (double)(state >> 8) * 1e-10;
        }
        f.comm_total_s = i % 11 == 0 ? UNKNOWN : f.phase_s[MOMENT_REDUCE] * (1 + i % 9);
        f.base_compute_s = i % 13 == 0 ? UNKNOWN : 1e-5 * (i % 17);
        memset(said, '#', sizeof said);
        bench_why(&f, said);
        size_t length = strnlen(said, sizeof said);
        ck_assert(length > 0 && length < sizeof said - 1);
        ck_assert_msg(strstr(said, "nan") == NULL && strstr(said, "inf") == NULL, "%s", said);
    }
}
END_TEST

START_TEST(every_rule_is_told)
{
    int n = 0;
    while (bench_why_rule(n) != NULL)
        ck_assert(strlen(bench_why_rule(n++)) > 20);
    ck_assert_int_ge(n, 10);
    ck_assert_ptr_null(bench_why_rule(-1));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench_why");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_loop_test(core, the_sentence_follows_the_rules, 0, N_CASES);
    tcase_add_test(core, the_larger_cause_comes_first);
    tcase_add_test(core, any_numbers_get_a_sentence);
    tcase_add_test(core, every_rule_is_told);
    return suite_run(suite);
}
