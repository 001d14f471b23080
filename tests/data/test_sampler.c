/* The sampler's index streams are torch's, bit for bit. */
#include "data/sampler.h"

#include "base/clock.h"
#include "tests/support/suite.h"

#include <string.h>

/* The tables hold hashes of what torch.utils.data.DistributedSampler gives, by
 * tests/data/make_sampler_golden.py: FNV-1a over the indices as little-endian 32-bit words, of rank
 * 0, then rank 1, and so on. A cell of GRID is over drop_last false and true (if that leaves
 * something), and in each over no shuffling and the five seeds. */
static const uint64_t BASIS = 0xcbf29ce484222325u;

static const uint32_t SAMPLES[] = {1, 2, 3, 7, 64, 101, 1000};
static const int WORLD_SIZES[] = {1, 2, 3, 5, 16};
static const struct {
    uint64_t seed;
    int64_t epoch;
} SEEDS[] = {{0, 0}, {0, 3}, {12345, 1}, {4294967295u, 2}, {4294967301u, 0}};

enum {
    N_SAMPLES = sizeof SAMPLES / sizeof SAMPLES[0],
    N_WORLD_SIZES = sizeof WORLD_SIZES / sizeof WORLD_SIZES[0],
    N_SEEDS = sizeof SEEDS / sizeof SEEDS[0],
    MAX_SAMPLES = 60000,
};

static const uint64_t GRID[N_SAMPLES][N_WORLD_SIZES] = {
    {0xa09d945a1cd8d6e5, 0xa09d945a1cd8d6e5, 0x3ecb33e15783bec5, 0xde9fa0da6fc22a85,
     0xc86ec345c0ee8125},
    {0xb22d7247d7fc6505, 0xb22d7247d7fc6505, 0x6313a06d1c82d144, 0xd77394d21fd78aa4,
     0xe783d46390d96625},
    {0x396561f5d4eb5585, 0x0dab725e8aca94e7, 0x396561f5d4eb5585, 0xde53062f26713f66,
     0xecbac8644481bd34},
    {0x8b24890f714d8f65, 0x0a49db9ecb86f8d5, 0x235ee2057fcf5f12, 0xf8e9d18332f64546,
     0x2b84e9096fe0f4b7},
    {0x5c5a35c907bdcd05, 0x796b599ded1b8845, 0x2fd087563802dedb, 0x0223b321227935ba,
     0xc4e771ab268dd265},
    {0x02bb2a83b9c6a765, 0x5ba98461ee0a95dc, 0xd342babf5d3d1950, 0x6813e0af0531b176,
     0xafb6e12e931e3b5d},
    {0xc4a2e9fc411d9705, 0x237326fe968626e5, 0xb59a6f55d532ce4d, 0x217aa9dac66f893d,
     0x50c975d767af22ed},
};

static const struct {
    uint32_t samples;
    int world_size;
    uint64_t seed;
    int64_t epoch;
    bool drop_last;
    uint64_t hash;
} LARGE[] = {
    {60000, 1, 0, 0, false, 0xc39312e48996b4e9}, {60000, 7, 1, 13, false, 0xb5c405f1305b31ae},
    {60000, 7, 1, 13, true, 0xfa25c67fe96246b1}, {60000, 16, 42, 5, false, 0xcc9ca26a5ef31ff9},
    {10000, 3, 0, 0, false, 0x6b6afc0effb1263b}, {10000, 7, 7, 1, true, 0x07e010d4e3abf8ab},
};

static uint32_t indices[MAX_SAMPLES + 1];

static uint64_t hash_all_ranks(uint64_t hash, sampler_options options, int64_t epoch)
{
    for (options.rank = 0; options.rank < options.world_size; options.rank++) {
        sampler_plan plan;
        ck_assert_int_eq(sampler_check(&options, &plan), STATUS_OK);
        ck_assert_uint_le(plan.per_rank, MAX_SAMPLES);
        indices[plan.per_rank] = 0xdeadbeef;
        ck_assert_int_eq(sampler_indices(&options, epoch, indices), STATUS_OK);
        ck_assert_uint_eq(indices[plan.per_rank], 0xdeadbeef);
        for (uint32_t i = 0; i < plan.per_rank; i++)
            for (int shift = 0; shift < 32; shift += 8)
                hash = (hash ^ (indices[i] >> shift & 0xff)) * 0x100000001b3u;
    }
    return hash;
}

START_TEST(grid_is_torchs)
{
    int row = _i / N_WORLD_SIZES, column = _i % N_WORLD_SIZES;
    sampler_options options = {.samples = SAMPLES[row], .world_size = WORLD_SIZES[column]};
    uint64_t hash = BASIS;
    for (int drop_last = 0; drop_last <= 1; drop_last++) {
        options.drop_last = drop_last == 1;
        if (options.drop_last && options.samples < (uint32_t)options.world_size)
            continue;
        options.shuffle = false;
        hash = hash_all_ranks(hash, options, 0);
        options.shuffle = true;
        for (int i = 0; i < N_SEEDS; i++) {
            options.seed = SEEDS[i].seed;
            hash = hash_all_ranks(hash, options, SEEDS[i].epoch);
        }
        options.seed = 0;
    }
    ck_assert_msg(hash == GRID[row][column], "%u samples, world size %d", options.samples,
                  options.world_size);
}
END_TEST

START_TEST(large_ones_are_torchs)
{
    sampler_options options = {.samples = LARGE[_i].samples,
                               .world_size = LARGE[_i].world_size,
                               .seed = LARGE[_i].seed,
                               .shuffle = true,
                               .drop_last = LARGE[_i].drop_last};
    ck_assert_uint_eq(hash_all_ranks(BASIS, options, LARGE[_i].epoch), LARGE[_i].hash);
}
END_TEST

/* The first ten of torch.randperm(60000) with seed 0, and the sum over k of p[k] * (k + 1). */
START_TEST(permutation_of_mnist_is_torchs)
{
    static const uint32_t FIRST[] = {36044, 10678, 57327, 55074, 21567,
                                     15479, 9481,  43095, 26145, 7479};
    sampler_options options = {.samples = 60000, .world_size = 1, .shuffle = true};
    int64_t begin = clock_now_ns();
    ck_assert_int_eq(sampler_indices(&options, 0, indices), STATUS_OK);
    int64_t elapsed_ns = clock_now_ns() - begin;
    ck_assert_mem_eq(indices, FIRST, sizeof FIRST);
    uint64_t sum = 0;
    for (uint64_t k = 0; k < 60000; k++)
        sum += indices[k] * (k + 1);
    ck_assert_uint_eq(sum, 53971558475953);
    ck_assert_msg(elapsed_ns < 100 * 1000000, "%.1f ms", (double)elapsed_ns * 1e-6);
}
END_TEST

/* Fewer samples than ranks: the list is repeated as often as needed. */
START_TEST(padding_repeats_the_list)
{
    static const uint32_t WANT[] = {0, 1, 2, 0, 1, 2, 0};
    for (int rank = 0; rank < 7; rank++) {
        sampler_options options = {.samples = 3, .rank = rank, .world_size = 7};
        sampler_plan plan;
        ck_assert_int_eq(sampler_check(&options, &plan), STATUS_OK);
        ck_assert_uint_eq(plan.per_rank, 1);
        ck_assert_uint_eq(plan.padded, 4);
        ck_assert_int_eq(sampler_indices(&options, 0, indices), STATUS_OK);
        ck_assert_uint_eq(indices[0], WANT[rank]);
    }
}
END_TEST

START_TEST(plans_add_up)
{
    static const uint32_t COUNTS[] = {1, 2, 3, 7, 64, 101, 10000, 60000, 4294967295u};
    for (size_t i = 0; i < sizeof COUNTS / sizeof COUNTS[0]; i++) {
        for (int world_size = 1; world_size <= 17; world_size++) {
            sampler_options options = {.samples = COUNTS[i], .world_size = world_size};
            sampler_plan padded, cut;
            ck_assert_int_eq(sampler_check(&options, &padded), STATUS_OK);
            uint64_t all = (uint64_t)padded.per_rank * (uint64_t)world_size;
            ck_assert_uint_eq(all, (uint64_t)COUNTS[i] + padded.padded);
            ck_assert_uint_lt(padded.padded, (uint32_t)world_size);
            ck_assert_uint_eq(padded.dropped, 0);
            options.drop_last = true;
            if (COUNTS[i] < (uint32_t)world_size)
                continue;
            ck_assert_int_eq(sampler_check(&options, &cut), STATUS_OK);
            all = (uint64_t)cut.per_rank * (uint64_t)world_size;
            ck_assert_uint_eq(all + cut.dropped, COUNTS[i]);
            ck_assert_uint_eq(cut.padded, 0);
        }
    }
}
END_TEST

/* Counts in `seen` how often each sample is among the first `most` indices of all ranks. */
static void count_all_ranks(sampler_options options, uint64_t most, int seen[MAX_SAMPLES])
{
    sampler_plan plan;
    for (options.rank = 0; options.rank < options.world_size; options.rank++) {
        ck_assert_int_eq(sampler_check(&options, &plan), STATUS_OK);
        ck_assert_int_eq(sampler_indices(&options, 4, indices), STATUS_OK);
        for (uint32_t i = 0; i < plan.per_rank && i < most; i++)
            seen[indices[i]]++;
    }
}

/* Some ranks take so many indices each, others deal out the rest: no sample comes twice, but for
 * what is padded, and none is left out, but for what is dropped. */
static void expect_each_once(sampler_options options, int world_size, uint64_t taken)
{
    static int before[MAX_SAMPLES], after[MAX_SAMPLES];
    sampler_plan plan;
    uint32_t repeated = 0, missing = 0;
    memset(before, 0, sizeof before);
    memset(after, 0, sizeof after);
    count_all_ranks(options, taken, before);
    options.first = sampler_used(&options, taken);
    options.world_size = world_size;
    count_all_ranks(options, UINT64_MAX, after);
    options.rank = 0;
    ck_assert_int_eq(sampler_check(&options, &plan), STATUS_OK);
    for (uint32_t i = 0; i < options.samples; i++) {
        ck_assert_int_eq(before[i] > 0 && after[i] > 0, 0);
        repeated += after[i] > 1 ? (uint32_t)after[i] - 1 : 0;
        missing += before[i] + after[i] == 0;
    }
    ck_assert_uint_eq(repeated, plan.padded);
    ck_assert_uint_eq(missing, plan.dropped);
}

START_TEST(other_ranks_deal_out_the_rest)
{
    uint32_t samples = SAMPLES[_i];
    for (int from = 0; from < N_WORLD_SIZES - 1; from++)
        for (int to = 0; to < N_WORLD_SIZES - 1; to++)
            for (uint64_t taken = 0; taken <= samples / (uint32_t)WORLD_SIZES[from] + 1;
                 taken += 1 + taken / 3)
                for (int drop_last = 0; drop_last < 2; drop_last++) {
                    sampler_options options = {.samples = samples,
                                               .world_size = WORLD_SIZES[from],
                                               .seed = 3,
                                               .shuffle = true,
                                               .drop_last = drop_last != 0};
                    bool none = drop_last != 0 && samples < (uint32_t)WORLD_SIZES[from];
                    bool starts = taken == 0 && samples < (uint32_t)WORLD_SIZES[to];
                    if (!none && !(drop_last != 0 && starts))
                        expect_each_once(options, WORLD_SIZES[to], taken);
                }
}
END_TEST

START_TEST(bad_options_are_refused)
{
    static const struct {
        sampler_options options;
        const char *words;
    } BAD[] = {
        {{.samples = 10, .rank = 0, .world_size = 0}, "world size 0"},
        {{.samples = 10, .rank = 2, .world_size = 2}, "interval [0, 1]"},
        {{.samples = 10, .rank = -1, .world_size = 2}, "invalid rank -1"},
        {{.samples = 0, .rank = 0, .world_size = 2}, "no samples"},
        {{.samples = 3, .rank = 0, .world_size = 4, .drop_last = true}, "drop_last"},
        {{.samples = 214748364, .rank = 0, .world_size = 1, .shuffle = true}, "214748363"},
    };
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        sampler_plan plan;
        uint32_t untouched = 7;
        ck_assert_int_eq(sampler_check(&BAD[i].options, &plan), STATUS_INVALID);
        ck_assert_msg(strstr(status_text(), BAD[i].words) != NULL, "%s", status_text());
        ck_assert_int_eq(sampler_indices(&BAD[i].options, 0, &untouched), STATUS_INVALID);
        ck_assert_uint_eq(untouched, 7);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sampler");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_loop_test(core, grid_is_torchs, 0, N_SAMPLES * N_WORLD_SIZES);
    tcase_add_loop_test(core, large_ones_are_torchs, 0, sizeof LARGE / sizeof LARGE[0]);
    tcase_add_test(core, permutation_of_mnist_is_torchs);
    tcase_add_test(core, padding_repeats_the_list);
    tcase_add_test(core, plans_add_up);
    tcase_add_loop_test(core, other_ranks_deal_out_the_rest, 0, N_SAMPLES);
    tcase_add_test(core, bad_options_are_refused);
    return suite_run(suite);
}
