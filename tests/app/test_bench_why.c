/* The sentence that says why a run is as fast as it is, from made-up phases. */
#include "app/bench/bench_why.h"
#include "tests/support/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define UNKNOWN ((double)NAN)

/* 10 ms of a step, in ms, in the order of bench_phase: data, broadcast, scatter, forward, gather,
 * backward, reduce, waiting, optimizer, accelerator. */
typedef struct made_up {
    bench_mode mode;
    int world, cores;
    double phase_ms[BENCH_PHASES];
    double comm_total_ms;
    double base_ms;     /* forward and backward of the whole batch of 64 on one device alone */
    const char *words;  /* parted by '|': what the sentence says */
    const char *silent; /* what it does not; NULL */
} made_up;

static const made_up CASES[] = {
    /* the master's traffic, largest part first */
    {BENCH_DP,
     2,
     2,
     {0.1, 2, 0.3, 2, 0.5, 3.7, 1, 0.1, 0.3, 0},
     UNKNOWN,
     11.4,
     "traffic through the master takes 38 % of the step while replicas wait "
     "(broadcast 20 %, reduce 10 %, gather 5 %, scatter 3 %)",
     "hidden"},
    {BENCH_PS,
     2,
     2,
     {0.1, 2, 0, 2, 0, 3.9, 1.6, 0.1, 0.3, 0},
     UNKNOWN,
     11.8,
     "36 % of the step while ranks wait (broadcast 20 %, reduce 16 %)",
     "scatter"},
    /* one device has no master to wait for */
    {BENCH_DP,
     1,
     2,
     {0.1, 2, 0, 2, 0, 3.9, 1.6, 0.1, 0.3, 0},
     UNKNOWN,
     6,
     "forward and backward are 59 % of the step",
     "master"},
    {BENCH_DP,
     2,
     2,
     {0.1, 0.2, 0, 2.9, 0, 4.5, 0.3, 0, 2, 0},
     UNKNOWN,
     14.8,
     "the optimizer runs on the master alone, 20 % of the step",
     "traffic"},
    {BENCH_DDP,
     2,
     2,
     {0.1, 0, 0, 2.9, 0, 4.5, 0.5, 0, 2, 0},
     UNKNOWN,
     14.8,
     "every rank does the whole optimizer step, 20 % that more ranks do not shorten",
     "master"},
    {BENCH_DDP,
     2,
     2,
     {0.1, 0, 0, 2, 0, 4, 3.5, 0, 0.4, 0},
     4,
     12,
     "the all-reduce takes 35 % of the step beyond what backward hides",
     "is hidden"},
    {BENCH_DDP,
     2,
     2,
     {0.1, 0, 0, 3.2, 0, 6, 0.2, 0, 0.5, 0},
     2,
     18.4,
     "the all-reduce is hidden behind backward (90 % of its 2 ms)",
     "beyond"},
    /* hidden, but its total is not known: then nothing is said of it */
    {BENCH_DDP,
     2,
     2,
     {0.1, 0, 0, 3.2, 0, 6, 0.2, 0, 0.5, 0},
     UNKNOWN,
     18.4,
     "forward and backward are 92 % of the step",
     "hidden"},
    {BENCH_DP,
     2,
     2,
     {0.1, 0.2, 0, 2.5, 0, 4.5, 0.3, 2.1, 0.3, 0},
     UNKNOWN,
     14,
     "the master waits 21 % of the step for slower replicas",
     "rank 0"},
    {BENCH_DDP,
     2,
     2,
     {0.1, 0, 0, 2.5, 0, 4.5, 0.3, 2.3, 0.3, 0},
     UNKNOWN,
     14,
     "rank 0 waits 23 % of the step for slower ranks",
     "replicas"},
    /* 16 images in 9 ms; alone 64 in 18.95: 1.9 times as long per image */
    {BENCH_DDP,
     4,
     2,
     {0.1, 0, 0, 3, 0, 6, 0.4, 0, 0.5, 0},
     0.5,
     18.95,
     "4 ranks share 2 cores: forward and backward take 1.9 times as long per image",
     "only"},
    {BENCH_DDP, 4, 1, {0.1, 0, 0, 3, 0, 6, 0.4, 0, 0.5, 0}, 0.5, 18.95, "share 1 core:", NULL},
    {BENCH_DDP,
     4,
     8,
     {0.1, 0, 0, 3, 0, 6, 0.4, 0, 0.5, 0},
     0.5,
     18.95,
     "only 16 images at a time: forward and backward take 1.9 times as long per image as 64 at "
     "once",
     "share"},
    /* not notably slower: 1.2 times */
    {BENCH_DDP,
     4,
     2,
     {0.1, 0, 0, 3, 0, 6, 0.4, 0, 0.5, 0},
     0.5,
     30,
     "forward and backward are 90 %",
     "share"},
    {BENCH_SINGLE,
     1,
     2,
     {3, 0, 0, 2, 0, 4, 0, 0, 1, 0},
     0,
     6,
     "the next batch is waited for: 30 % of the step",
     "optimizer"},
    {BENCH_SINGLE,
     1,
     2,
     {0, 0, 0, 0, 0, 0, 0, 0, 0.5, 9.5},
     UNKNOWN,
     UNKNOWN,
     "95 % of the step is one recorded graph on the GPU",
     "forward"},
    {BENCH_DDP,
     2,
     2,
     {UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN},
     UNKNOWN,
     UNKNOWN,
     "where its time goes is not known",
     ";"},
    /* two causes, the larger one first */
    {BENCH_DP,
     4,
     2,
     {0.1, 2, 0.2, 1.5, 0.3, 3.5, 2, 0, 0.4, 0},
     UNKNOWN,
     10,
     "traffic through the master takes 45 %|; 4 replicas share 2 cores: forward and backward take "
     "2.0 times",
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
    for (int p = 0; p < BENCH_PHASES; p++)
        f.phase_s[p] = 1e-3 * c->phase_ms[p];
    return f;
}

START_TEST(the_sentence_follows_the_rules)
{
    const made_up *c = &CASES[_i];
    char said[BENCH_WHY_BYTES], words[512];
    bench_facts f = facts_of(c);
    bench_why(&f, said);
    snprintf(words, sizeof words, "%s", c->words);
    for (char *word = strtok(words, "|"); word != NULL; word = strtok(NULL, "|"))
        ck_assert_msg(strstr(said, word) != NULL, "\"%s\" lacks \"%s\"", said, word);
    ck_assert_msg(c->silent == NULL || strstr(said, c->silent) == NULL, "\"%s\" says \"%s\"", said,
                  c->silent);
}
END_TEST

/* Whatever the numbers are, there is one sentence of one or two causes, and it ends. */
START_TEST(any_numbers_get_a_sentence)
{
    unsigned state = 7;
    char said[BENCH_WHY_BYTES];
    for (int i = 0; i < 20000; i++) {
        bench_facts f = {.step_s = 10e-3, .global_batch = 64, .base_batch = 64};
        f.mode = (bench_mode)(i % BENCH_MODES);
        f.world = 1 + i % 7;
        f.threads = 1 + i % 3;
        f.cores = 1 + i % 5;
        for (int p = 0; p < BENCH_PHASES; p++) {
            state = state * 1664525u + 1013904223u;
            unsigned kind = state >> 29;
            f.phase_s[p] = kind == 0 ? UNKNOWN : kind == 1 ? 0 : (double)(state >> 8) * 1e-10;
        }
        f.comm_total_s = i % 11 == 0 ? UNKNOWN : f.phase_s[BENCH_REDUCE] * (1 + i % 9);
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
    tcase_add_test(core, any_numbers_get_a_sentence);
    tcase_add_test(core, every_rule_is_told);
    return suite_run(suite);
}
