/* Which device and precision a rank gets from the flags, and what is refused. */
#include "app/common/device_list.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <string.h>

enum { MAX_ARGS = 8, LINE_BYTES = 128 };

static options read_options(const char *flags)
{
    static char copy[LINE_BYTES];
    char *argv[MAX_ARGS] = {"mnist_ddp"};
    int argc = 1;
    snprintf(copy, LINE_BYTES, "%s", flags);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    options opts;
    ck_assert_msg(options_parse(argc, argv, &opts) == STATUS_OK, "%s: %s", flags, status_text());
    return opts;
}

static const struct {
    const char *flags;
    int local_rank;
    const char *name;
    int index, named;
    precision precision;
} CHOICES[] = {
    {"--device=cpu", 0, "cpu", 0, 0, PRECISION_F32},
    {"--device=reference", 3, "reference", 0, 0, PRECISION_F32},
    {"--no-cuda", 0, "cpu", 0, 0, PRECISION_F32},
    {"--devices=0,3", 0, "cuda", 0, 2, PRECISION_F32},
    {"--devices=0,3", 1, "cuda", 3, 2, PRECISION_F32},
    {"--devices=0,3", 2, "cuda", 0, 2, PRECISION_F32},
    {"--device 0,3", 1, "cuda", 3, 2, PRECISION_F32},
    {"--device cuda --devices 5 --tf32", 1, "cuda", 5, 1, PRECISION_TF32},
    {"--device cuda:1 --amp bf16", 0, "cuda", 1, 1, PRECISION_BF16},
    {"--device 2 --amp=fp16", 0, "cuda", 2, 1, PRECISION_F16},
};

START_TEST(choices)
{
    options opts = read_options(CHOICES[_i].flags);
    device_options got = {0};
    ck_assert_msg(device_list_choose(&opts, CHOICES[_i].local_rank, &got) == STATUS_OK, "%s",
                  status_text());
    ck_assert_str_eq(got.name, CHOICES[_i].name);
    ck_assert_int_eq(got.index, CHOICES[_i].index);
    ck_assert_int_eq(got.precision, CHOICES[_i].precision);
    ck_assert_int_eq(device_list_named(&opts), CHOICES[_i].named);
    int count = -1;
    ck_assert_int_eq(device_list_count(&opts, &count), STATUS_OK);
    ck_assert_int_eq(count, CHOICES[_i].named);
    options_free(&opts);
}
END_TEST

static const struct {
    const char *flags, *facts[4];
} REFUSALS[] = {
    {"--devices=0,x", {"--devices=0,x", "number", "--devices=0,3"}},
    {"--devices=0,", {"number", "--devices=0,3"}},
    {"--device=0,0", {"--device=0,0", "GPU 0", "twice"}},
    {"--device=cuda:", {"--device=cuda", "number"}},
    {"--device=0 --devices=1", {"--device=0", "--devices=1"}},
    {"--device=cpu --devices=1", {"--devices=1", "cpu"}},
    {"--device=onednn --isa=avx2", {"onednn", "gone", "--device=cpu"}},
    {"--device=reference --dense", {"--dense", "reference", "--device=cpu"}},
    {"--device=reference --isa=avx512", {"--isa=avx512", "reference", "--isa=auto"}},
    {"--devices=0 --isa=avx2", {"--isa=avx2", "cuda"}},
    {"--amp=bf16 --tf32", {"--amp=bf16", "--tf32"}},
};

START_TEST(refusals)
{
    options opts = read_options(REFUSALS[_i].flags);
    device_options got = {0};
    ck_assert_int_eq(device_list_choose(&opts, 0, &got), STATUS_INVALID);
    ASSERT_FACTS_LISTED(status_text(), REFUSALS[_i].facts);
    options_free(&opts);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_list");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_loop_test(core, choices, 0, sizeof CHOICES / sizeof CHOICES[0]);
    tcase_add_loop_test(core, refusals, 0, sizeof REFUSALS / sizeof REFUSALS[0]);
    return suite_run(suite);
}
