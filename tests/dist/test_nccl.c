/* The nccl backend: what test_shm.c asks of shm, on device and host memory; who gets it and who is
 * refused; and device memory on the other backends. */
#include "dist/comm_hook.h"
#include "dist/process_group/process_group.h"
#include "tests/dist/nccl_ranks.h"
#include "tests/support/collective_data.h"
#include "tests/support/collectives.h"
#include "tests/support/facts.h"

#include <math.h>

static const char *const STAGED[] = {"shm", "gloo"};

static const memory_kind KINDS[] = {MEMORY_DEVICE, MEMORY_DEVICE_OUT_OF_PLACE, MEMORY_PLAIN,
                                    MEMORY_OUT_OF_PLACE};
enum { N_KINDS = sizeof KINDS / sizeof KINDS[0] };

START_TEST(all_reduce_is_exact)
{
    memory_kind kind = KINDS[_i % N_KINDS];
    nccl_run(NCCL_WORLDS[_i / N_KINDS], collectives_all_reduce, &kind);
}
END_TEST

START_TEST(broadcast_is_exact)
{
    memory_kind kind = _i % 2 == 0 ? MEMORY_DEVICE : MEMORY_PLAIN;
    nccl_run(NCCL_WORLDS[_i / 2], collectives_broadcast, &kind);
}
END_TEST

START_TEST(further_kinds_are_exact)
{
    memory_kind kind = _i % 2 == 0 ? MEMORY_DEVICE_OUT_OF_PLACE : MEMORY_OUT_OF_PLACE;
    nccl_run(NCCL_WORLDS[_i / 2], collectives_further, &kind);
}
END_TEST

START_TEST(many_works_under_way)
{
    nccl_run(NCCL_WORLDS[_i], collectives_outstanding, NULL);
}
END_TEST

/* By calls that block. */
START_TEST(an_eager_group_does_the_same)
{
    static const memory_kind kinds[] = {MEMORY_OUT_OF_PLACE, MEMORY_DEVICE_OUT_OF_PLACE};
    memory_kind kind = kinds[_i];
    ranks_options options = nccl_options(3, "nccl");
    options.eager = true;
    nccl_run_with(&options, collectives_all_reduce, &kind);
    nccl_run_with(&options, collectives_further, &kind);
    nccl_run_with(&options, collectives_bits_on_device, NULL);
}
END_TEST

START_TEST(bits_are_the_same_everywhere)
{
    nccl_run(NCCL_WORLDS[_i / 2], _i % 2 == 0 ? collectives_bits_on_device : collectives_bits,
             NULL);
}
END_TEST

/* Where the user lets NVLS in, what is left of the promise. */
START_TEST(nvls_leaves_the_same_bits_on_all_ranks)
{
    unsetenv("NCCL_NVLS_ENABLE");
    nccl_run(_i, collectives_bits_of_a_call, NULL);
    if (!cuda_is_real()) { /* the emulated one differs from call to call */
        ranks_options options = nccl_options(_i, "nccl");
        rank_result results[NCCL_MAX_WORLD];
        ck_assert_int_eq(run_rank_processes(&options, collectives_bits_on_device, NULL, results),
                         STATUS_OK);
        /* Two calls of six may well have one order by chance, but not all. */
        ck_assert_msg(strstr(results[0].message, "want") != NULL, "%s", results[0].message);
    }
    setenv("NCCL_NVLS_ENABLE", "0", 1);
}
END_TEST

START_TEST(one_rank_needs_no_peer)
{
    memory_kind kind = MEMORY_DEVICE_OUT_OF_PLACE;
    nccl_run(1, collectives_all_reduce, &kind);
    nccl_run(1, collectives_further, &kind);
}
END_TEST

static status expect_backend(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    (void)world_size;
    if (strcmp(process_group_backend(group), arg) != 0)
        return FAIL(STATUS_INVALID, "backend is %s", process_group_backend(group));
    return process_group_barrier(group);
}

START_TEST(auto_is_nccl_where_each_has_a_gpu)
{
    ranks_options options = nccl_options(2, "auto");
    char nccl[] = "nccl", shm[] = "shm";
    nccl_run_with(&options, expect_backend, nccl);
    options.open_device = nccl_open_first;
    nccl_run_with(&options, expect_backend, shm);
    options.open_device = nccl_open_on_even;
    nccl_run_with(&options, expect_backend, shm);
}
END_TEST

static const struct {
    const char *label;
    status (*open_device)(int rank, device **out);
    int64_t inject_delay_ms;
    const char *facts[5];
} REFUSALS[] = {
    {"shared", nccl_open_first, 0, {"ranks 0 and 1", "GPU", "--backend=shm", "--devices"}},
    {"cpu", nccl_open_on_even, 0, {"rank 1", "CPU", "--device=cuda", "shm"}},
    {"delay", nccl_open_own, 5, {"delay", "nccl", "--backend=shm"}},
    {"disguised",
     nccl_open_disguised,
     0,
     {"Duplicate GPU", "--backend=shm", "ncclCommInitRankConfig"}},
};
enum { N_REFUSALS = sizeof REFUSALS / sizeof REFUSALS[0] };

START_TEST(refused_in_one_line_on_all_ranks)
{
    ranks_options options = nccl_options(2, "nccl");
    rank_result results[2];
    options.open_device = REFUSALS[_i].open_device;
    options.inject_delay_ms = REFUSALS[_i].inject_delay_ms;
    ck_assert_int_eq(run_rank_processes(&options, expect_backend, NULL, results), STATUS_OK);
    int clear = 0;
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_msg(results[rank].reported && results[rank].st != STATUS_OK, "rank %d", rank);
        bool has_all = facts_listed_in_a_line(results[rank].message, REFUSALS[_i].facts);
        /* NCCL keeps one text: of the slower rank it may be that its peer has hung up. */
        bool own = results[rank].st == STATUS_PEER || results[rank].st == STATUS_IO;
        bool nccls = options.open_device == nccl_open_disguised && own &&
                     facts_in_a_line(results[rank].message, "ncclCommInitRankConfig", NULL);
        ck_assert_msg(has_all || nccls, "%s: %s", REFUSALS[_i].label, results[rank].message);
        ck_assert_ptr_null(strchr(results[rank].message, '\n'));
        clear += has_all;
    }
    ck_assert_int_ge(clear, 1);
}
END_TEST

START_TEST(other_backends_stage_device_memory)
{
    ranks_options options = nccl_options(2 + _i / 2, STAGED[_i % 2]);
    memory_kind kind = MEMORY_DEVICE;
    options.open_device = nccl_open_first;
    nccl_run_with(&options, collectives_all_reduce, &kind);
    nccl_run_with(&options, collectives_outstanding, NULL);
    nccl_run_with(&options, collectives_bits_on_device, NULL);
    options.open_device = nccl_open_on_even;
    nccl_run_with(&options, collectives_broadcast, &kind);
}
END_TEST

/* Two slices, of which one begins where 16 bytes do not, and one float that is carried. */
enum { HOOKED = 10007, HOOKED_SLICE = 4001 };

/* What has a subnormal of 16 bits, what overflows them, and what is above any of both. */
static float hooked_gradient(size_t i, int rank)
{
    static const float scales[] = {4.0f, 0.01f, 1e-6f, 1e-39f, 70000.0f};
    return sinf((float)i * 0.7f + (float)rank) * scales[i % 5];
}

/* Averages hooked_gradient in `data`, which `dev` has if it is not NULL. */
static status hook_step(process_group *group, comm_hook_kind kind, float *data, device *dev)
{
    const comm_hook_matrix whole[] = {{0, HOOKED_SLICE, 1},
                                      {HOOKED_SLICE, HOOKED - HOOKED_SLICE, 1}};
    comm_hook_options options = {.kind = kind, .rank = 1};
    comm_hook_arena arena = {data, HOOKED, 1, whole, 2, dev};
    comm_hook *hook = NULL;
    int64_t ns = 0;
    TRY(comm_hook_create(group, &options, &arena, &hook));
    status st = comm_hook_launch(hook, HOOKED_SLICE, HOOKED - HOOKED_SLICE, NULL);
    if (st == STATUS_OK)
        st = comm_hook_launch(hook, 0, HOOKED_SLICE, NULL);
    if (st == STATUS_OK)
        st = comm_hook_wait(hook, &ns);
    comm_hook_destroy(hook);
    return st;
}

/* The carried float is NaN on one rank, whose bits may be any. */
static status hook_on_both(process_group *group, int rank, int world_size, void *arg)
{
    const comm_hook_kind *kind = arg;
    float host[HOOKED + 1];
    collective_data d;
    (void)world_size;
    TRY(collective_data_open(group, MEMORY_DEVICE, sizeof host, &d));
    for (size_t i = 0; i < HOOKED; i++)
        host[i] = hooked_gradient(i, rank);
    host[HOOKED] = rank == 0 ? NAN : 1;
    memcpy(d.in, host, sizeof host);
    TRY(collective_data_send(&d));
    TRY(hook_step(group, *kind, d.call_out, ranks_device()));
    TRY(collective_data_fetch(&d));
    TRY(hook_step(group, *kind, host, NULL));
    const float *got = (const float *)d.out;
    for (size_t i = 0; i < HOOKED; i++)
        if (memcmp(&got[i], &host[i], sizeof host[i]) != 0 && !isnan(host[i]))
            return FAIL(STATUS_INVALID, "[%zu] is %a, on the host %a", i, (double)got[i],
                        (double)host[i]);
    if (!isnan(got[HOOKED]) || !isnan(host[HOOKED]))
        return FAIL(STATUS_INVALID, "NaN has become %g", (double)got[HOOKED]);
    collective_data_close(&d);
    return STATUS_OK;
}

START_TEST(hooks_have_the_bits_of_those_on_the_host)
{
    comm_hook_kind kind = _i % 2 == 0 ? COMM_HOOK_BF16 : COMM_HOOK_FP16;
    nccl_run(1 + _i / 2, hook_on_both, &kind);
}
END_TEST

int main(void)
{
    if (!nccl_choose())
        return TEST_SKIPPED;
    Suite *suite = suite_create("nccl");
    TCase *results = suite_case(suite, "results", 120);
    tcase_add_test(results, one_rank_needs_no_peer);
    nccl_add_worlds(results, all_reduce_is_exact, NCCL_N_SMALL_WORLDS, N_KINDS);
    nccl_add_worlds(results, broadcast_is_exact, NCCL_N_SMALL_WORLDS, 2);
    nccl_add_worlds(results, further_kinds_are_exact, NCCL_N_SMALL_WORLDS, 2);
    nccl_add_worlds(results, many_works_under_way, NCCL_N_SMALL_WORLDS, 1);
    suite_add_all(results, an_eager_group_does_the_same, 2, nccl_lacks_gpus(3));
    nccl_add_worlds(results, bits_are_the_same_everywhere, NCCL_N_WORLDS, 2);
    for (int i = 0; i < 6; i++)
        suite_add(results, hooks_have_the_bits_of_those_on_the_host, i, nccl_lacks_gpus(1 + i / 2));
    suite_add(results, nvls_leaves_the_same_bits_on_all_ranks, 4, nccl_lacks_gpus(4));
    suite_add(results, nvls_leaves_the_same_bits_on_all_ranks, 8, nccl_lacks_gpus(8));
    TCase *choice = suite_case(suite, "choice", 60);
    suite_add(choice, auto_is_nccl_where_each_has_a_gpu, 0, nccl_lacks_gpus(2));
    for (int i = 0; i < N_REFUSALS; i++)
        suite_add(choice, refused_in_one_line_on_all_ranks, i,
                  nccl_lacks_gpus(REFUSALS[i].open_device == nccl_open_own ? 2 : 1));
    TCase *staged = suite_case(suite, "staged", 120);
    for (int i = 0; i < 4; i++)
        suite_add(staged, other_backends_stage_device_memory, i, ranks_lack_backend(STAGED[i % 2]));
    return suite_run(suite);
}
