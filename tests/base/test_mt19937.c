/* The generator's numbers are those of torch.manual_seed(seed). */
#include "base/random.h"

#include "tests/support/suite.h"

/* From torch.empty(1000, dtype=torch.int64).random_(-2**63, None): each draws two outputs. */
static const struct {
    uint64_t seed;
    uint64_t drawn[6]; /* at PLACES: over the first twist's end and later ones' */
} GOLDEN[] = {
    {0,
     {0x8c7f0aac97c4aa2f, 0xb716a675d821ccc0, 0x9a4eb343dba252fb, 0x259e4b8ce2031ce4,
      0x145b8f3a4028cf81, 0xad591f3de5e070b5}},
    {1,
     {0x6ac1f425ff4780eb, 0xb8672f8ceebc1448, 0x00077eff20ccc389, 0xe8dddfb47792e739,
      0x41d2813837fb9a4e, 0xc644247c083df88a}},
    {12345,
     {0xedfb51e2e3e12de5, 0x50fdfd1d21760881, 0x2f154da40a2dada9, 0xaea32bf1af3e54d6,
      0xebe05817d177a402, 0x4f00c00cc92390a3}},
    {4294967295u,
     {0x18fe69a31c924122, 0xe991ec0c900cac47, 0xc9fe37b486bcfe40, 0x48da5ceb3d380f30,
      0xe61ce0ed27304316, 0x8e7f1915690a246d}},
    {4294967301u, /* 2^32 + 5: only the low 32 bits count */
     {0x38d48b630e2048ce, 0xdee84fefd4d1e6bd, 0x34eb8be65d1ddc76, 0xff9ebaa2a779485a,
      0x09d0c6c3c0d29445, 0xca644f15ef80975c}},
};
static const int PLACES[] = {0, 1, 2, 311, 312, 999};

START_TEST(stream_is_torchs)
{
    mt19937 words, pairs;
    mt19937_init(&words, GOLDEN[_i].seed);
    mt19937_init(&pairs, GOLDEN[_i].seed);
    int place = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t high = mt19937_u32(&words), low = mt19937_u32(&words);
        uint64_t pair = mt19937_u64(&pairs);
        ck_assert_uint_eq(pair, high << 32 | low);
        if (i == PLACES[place])
            ck_assert_uint_eq(pair, GOLDEN[_i].drawn[place++]);
    }
    ck_assert_int_eq(place, 6);
}
END_TEST

START_TEST(high_seed_bits_do_not_count)
{
    mt19937 low, high;
    mt19937_init(&low, 5);
    mt19937_init(&high, UINT64_C(0xabcdef0100000005));
    for (int i = 0; i < 2000; i++)
        ck_assert_uint_eq(mt19937_u32(&low), mt19937_u32(&high));
}
END_TEST

START_TEST(runs_are_the_same_numbers)
{
    static const size_t most[] = {1, 7, 1000, 623, 624, 2};
    mt19937 words, runs;
    mt19937_init(&words, 5);
    mt19937_init(&runs, 5);
    for (size_t i = 0; i < sizeof most / sizeof most[0]; i++) {
        size_t n = 0;
        const uint32_t *numbers = mt19937_run(&runs, most[i], &n);
        ck_assert(n >= 1 && n <= most[i]);
        for (size_t k = 0; k < n; k++)
            ck_assert_uint_eq(numbers[k], mt19937_u32(&words));
    }
    ck_assert_uint_eq(mt19937_u32(&runs), mt19937_u32(&words));
}
END_TEST

/* The C++ standard's check value of mt19937: the 10000th output for seed 5489. */
START_TEST(ten_thousandth_output)
{
    mt19937 generator;
    mt19937_init(&generator, 5489);
    for (int i = 1; i < 10000; i++)
        mt19937_u32(&generator);
    ck_assert_uint_eq(mt19937_u32(&generator), 4123659995u);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mt19937");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_loop_test(core, stream_is_torchs, 0, sizeof GOLDEN / sizeof GOLDEN[0]);
    tcase_add_test(core, high_seed_bits_do_not_count);
    tcase_add_test(core, runs_are_the_same_numbers);
    tcase_add_test(core, ten_thousandth_output);
    return suite_run(suite);
}
