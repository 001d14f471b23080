/* DDP's communication hooks: what they leave of the gradients, the same on every rank, and what
 * they send for it. */
#include "base/half.h"
#include "dist/comm_hook.h"
#include "dist/ddp.h"
#include "tests/support/facts.h"
#include "tests/support/ranks.h"
#include "tests/support/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Two matrices that can be made smaller, one that cannot, and two vectors. */
enum { BIG = 0, TALL = 40 * 60, SMALL = TALL + 70 * 20, BIAS = SMALL + 3 * 2 };
enum { LAST = BIAS + 40, COUNT = LAST + 7, CARRIED = 1, N = 5 };

static const comm_hook_matrix MATRICES[N] = {
    {BIG, 40, 60}, {TALL, 70, 20}, {SMALL, 3, 2}, {BIAS, 40, 1}, {LAST, 7, 1}};
static const size_t OFFSETS[N] = {BIG, TALL, SMALL, BIAS, LAST};

typedef struct rig {
    process_group *group;
    float *gradients;
    comm_hook *hook;
    ddp *reducer;
} rig;

static status open_rig(process_group *group, const comm_hook_options *options, rig *out)
{
    rig r = {.group = group};
    TRY(process_group_alloc(group, (COUNT + CARRIED) * sizeof(float), (void **)&r.gradients));
    comm_hook_arena arena = {r.gradients, COUNT, CARRIED, MATRICES, N, NULL};
    TRY(comm_hook_create(group, options, &arena, &r.hook));
    ddp_options buckets = {4000, 4000, true, r.hook};
    status st =
        ddp_create(group, r.gradients, &(ddp_parameters){COUNT, OFFSETS, N}, &buckets, &r.reducer);
    if (st != STATUS_OK) {
        comm_hook_destroy(r.hook);
        return st;
    }
    ddp_carry(r.reducer, CARRIED);
    *out = r;
    return STATUS_OK;
}

static void close_rig(rig *r)
{
    ddp_destroy(r->reducer);
    comm_hook_destroy(r->hook);
}

static status step(rig *r)
{
    size_t end = COUNT;
    for (size_t i = N; i-- > 0; end = OFFSETS[i])
        TRY(ddp_on_grad_ready(r->reducer, OFFSETS[i], end - OFFSETS[i], NULL));
    return ddp_wait(r->reducer);
}

static float gradient(size_t i, int rank)
{
    return sinf((float)i * 0.7f + (float)rank) * (i % 3 == 0 ? 4.0f : 0.01f);
}

static float mean_gradient(size_t i, int world_size)
{
    double sum = 0;
    for (int rank = 0; rank < world_size; rank++)
        sum += (double)gradient(i, rank);
    return (float)(sum / world_size);
}

/* Do all ranks have rank 0's bits? */
static status check_alike(rig *r)
{
    float first[COUNT + CARRIED];
    memcpy(first, r->gradients, sizeof first);
    TRY(process_group_broadcast(r->group, first, COUNT + CARRIED, DTYPE_F32, 0, NULL));
    if (memcmp(first, r->gradients, sizeof first) != 0)
        return FAIL(STATUS_INVALID, "a rank has other bits than rank 0");
    return STATUS_OK;
}

static status halves(process_group *group, int rank, int world_size, void *arg)
{
    const comm_hook_options *options = arg;
    double unit = options->kind == COMM_HOOK_BF16 ? 0x1p-8 : 0x1p-11; /* half a last place */
    uint64_t before, after, received;
    rig r;
    TRY(open_rig(group, options, &r));
    for (size_t i = 0; i < COUNT; i++)
        r.gradients[i] = gradient(i, rank);
    r.gradients[COUNT] = rank == 0 ? 1 : 0;
    process_group_traffic(group, &before, &received);
    status st = step(&r);
    process_group_traffic(group, &after, &received);
    for (size_t i = 0; i < COUNT && st == STATUS_OK; i++) {
        double want = (double)mean_gradient(i, world_size), most = 0;
        for (int other = 0; other < world_size; other++)
            most += fabs((double)gradient(i, other)) / world_size;
        if (fabs((double)r.gradients[i] - want) > 2 * unit * most + 1e-6)
            st = FAIL(STATUS_INVALID, "[%zu] is %g, want %g", i, (double)r.gradients[i], want);
    }
    if (st == STATUS_OK && !(r.gradients[COUNT] > 0))
        st = FAIL(STATUS_INVALID, "what was carried is lost");
    uint64_t floats =
        2 * (COUNT + CARRIED) * sizeof(float) * (uint64_t)(world_size - 1) / (uint64_t)world_size;
    if (st == STATUS_OK && after - before > floats / 2 + 64)
        st = FAIL(STATUS_INVALID, "%llu bytes were sent, and all floats take %llu",
                  (unsigned long long)(after - before), (unsigned long long)floats);
    if (st == STATUS_OK)
        st = check_alike(&r);
    close_rig(&r);
    return st;
}

static const comm_hook_kind HALVES[] = {COMM_HOOK_FP16, COMM_HOOK_BF16};
static const int WORLDS[] = {1, 2, 3};

static ranks_options ranks_of(comm_hook_kind kind, int world_size)
{
    size_t own = (COUNT + CARRIED) * sizeof(float) + 64;
    return (ranks_options){.world_size = world_size,
                           .shared_bytes = own + comm_hook_shared_bytes(kind, COUNT, CARRIED)};
}

START_TEST(sixteen_bits_are_half_the_bytes_and_nearly_the_mean)
{
    comm_hook_options options = {.kind = HALVES[_i % 2], .rank = 1};
    ranks_options ranks = ranks_of(options.kind, WORLDS[_i / 2]);
    ck_assert_int_eq(run_ranks_with(&ranks, halves, &options), STATUS_OK);
}
END_TEST

/* NaN and infinity are carried on: whoever looks for them sees them. */
static status not_finite(process_group *group, int rank, int world_size, void *arg)
{
    rig r;
    (void)world_size;
    TRY(open_rig(group, arg, &r));
    memset(r.gradients, 0, (COUNT + CARRIED) * sizeof(float));
    if (rank == 0) {
        r.gradients[COUNT] = NAN;
        r.gradients[3] = INFINITY;
    }
    status st = step(&r);
    if (st == STATUS_OK && !isnan(r.gradients[COUNT]))
        st = FAIL(STATUS_INVALID, "NaN has become %g", (double)r.gradients[COUNT]);
    if (st == STATUS_OK && isfinite(r.gradients[3]))
        st = FAIL(STATUS_INVALID, "infinity has become %g", (double)r.gradients[3]);
    close_rig(&r);
    return st;
}

START_TEST(what_is_not_finite_stays_so)
{
    static const comm_hook_kind kinds[] = {COMM_HOOK_FP16, COMM_HOOK_BF16, COMM_HOOK_POWERSGD};
    comm_hook_options options = {.kind = kinds[_i], .rank = 1};
    ranks_options ranks = ranks_of(options.kind, 2);
    ck_assert_int_eq(run_ranks_with(&ranks, not_finite, &options), STATUS_OK);
}
END_TEST

/* Gradients that are the same product of two vectors on all ranks, but for a factor. */
static float rank_one(size_t i, int rank)
{
    if (i < SMALL) {
        const comm_hook_matrix *m = &MATRICES[i < TALL ? 0 : 1];
        size_t at = i - m->offset;
        return (float)(rank + 1) * cosf((float)(at / m->columns)) *
               sinf(1.0f + (float)(at % m->columns));
    }
    return gradient(i, rank);
}

static status exact_for_rank_one(process_group *group, int rank, int world_size, void *arg)
{
    uint64_t before, after, received;
    rig r;
    status st = STATUS_OK;
    TRY(open_rig(group, arg, &r));
    for (int number = 0; number < 3 && st == STATUS_OK; number++) {
        for (size_t i = 0; i < COUNT; i++)
            r.gradients[i] = rank_one(i, rank);
        r.gradients[COUNT] = 1;
        process_group_traffic(group, &before, &received);
        st = step(&r);
        process_group_traffic(group, &after, &received);
        for (size_t i = 0; i < COUNT && st == STATUS_OK; i++) {
            double want = 0;
            for (int other = 0; other < world_size; other++)
                want += (double)rank_one(i, other) / world_size;
            if (fabs((double)r.gradients[i] - want) > 1e-4)
                st = FAIL(STATUS_INVALID, "step %d [%zu] is %g, want %g", number, i,
                          (double)r.gradients[i], want);
        }
    }
    if (st == STATUS_OK && fabs((double)r.gradients[COUNT] - 1) > 1e-6)
        st = FAIL(STATUS_INVALID, "what was carried is %g", (double)r.gradients[COUNT]);
    /* P 40 + 70, Q 60 + 20, the small matrix, the vectors and what is carried */
    uint64_t floats = 40 + 70 + 60 + 20 + 6 + 40 + 7 + CARRIED;
    uint64_t most = 2 * floats * sizeof(float) * (uint64_t)(world_size - 1) / (uint64_t)world_size;
    if (st == STATUS_OK && (after - before > most + 8 || (world_size > 1 && after == before)))
        st = FAIL(STATUS_INVALID, "%llu bytes were sent, not %llu",
                  (unsigned long long)(after - before), (unsigned long long)most);
    if (st == STATUS_OK)
        st = check_alike(&r);
    close_rig(&r);
    return st;
}

START_TEST(powersgd_sends_a_matrix_of_rank_one_exactly)
{
    comm_hook_options options = {.kind = COMM_HOOK_POWERSGD, .rank = 1};
    ranks_options ranks = ranks_of(options.kind, WORLDS[_i]);
    ck_assert_int_eq(run_ranks_with(&ranks, exact_for_rank_one, &options), STATUS_OK);
}
END_TEST

/* What is left out comes later: over many steps the mean of what arrives is the mean gradient. */
static status comes_later(process_group *group, int rank, int world_size, void *arg)
{
    enum { STEPS = 300 };
    double sums[COUNT] = {0}, scale = 0, missing = 0;
    rig r;
    status st = STATUS_OK;
    TRY(open_rig(group, arg, &r));
    for (int number = 0; number < STEPS && st == STATUS_OK; number++) {
        for (size_t i = 0; i < COUNT; i++)
            r.gradients[i] = gradient(i, rank);
        r.gradients[COUNT] = 0;
        st = step(&r);
        for (size_t i = 0; i < COUNT; i++)
            sums[i] += (double)r.gradients[i] / STEPS;
    }
    for (size_t i = 0; i < SMALL; i++) {
        double want = (double)mean_gradient(i, world_size);
        scale += want * want;
        missing += (sums[i] - want) * (sums[i] - want);
    }
    if (st == STATUS_OK && missing > 0.01 * scale)
        st = FAIL(STATUS_INVALID, "%.1f %% of the gradients never came",
                  100 * sqrt(missing / scale));
    close_rig(&r);
    return st;
}

START_TEST(powersgd_makes_up_for_what_it_left_out)
{
    comm_hook_options options = {.kind = COMM_HOOK_POWERSGD, .rank = 2};
    ranks_options ranks = ranks_of(options.kind, WORLDS[_i]);
    ck_assert_int_eq(run_ranks_with(&ranks, comes_later, &options), STATUS_OK);
}
END_TEST

/* Before start_iter all gradients arrive as they are. */
static status starts_late(process_group *group, int rank, int world_size, void *arg)
{
    const comm_hook_options *options = arg;
    rig r;
    status st = STATUS_OK;
    TRY(open_rig(group, options, &r));
    for (int number = 0; number <= options->start_iter && st == STATUS_OK; number++) {
        double off = 0;
        for (size_t i = 0; i < COUNT; i++)
            r.gradients[i] = gradient(i, rank);
        st = step(&r);
        for (size_t i = 0; i < COUNT; i++)
            off = fmax(off, fabs((double)(r.gradients[i] - mean_gradient(i, world_size))));
        bool whole = off < 1e-5;
        if (st == STATUS_OK && whole != (number < options->start_iter))
            st = FAIL(STATUS_INVALID, "step %d is off by %g", number, off);
    }
    close_rig(&r);
    return st;
}

START_TEST(powersgd_starts_when_it_is_told)
{
    comm_hook_options options = {.kind = COMM_HOOK_POWERSGD, .rank = 1, .start_iter = 3};
    ranks_options ranks = ranks_of(options.kind, 2);
    ck_assert_int_eq(run_ranks_with(&ranks, starts_late, &options), STATUS_OK);
}
END_TEST

START_TEST(words_are_those_of_the_help)
{
    comm_hook_kind kind = COMM_HOOK_NONE;
    ck_assert_int_eq(comm_hook_parse("powersgd", &kind), STATUS_OK);
    ck_assert_int_eq(kind, COMM_HOOK_POWERSGD);
    ck_assert_int_eq(comm_hook_parse("fp8", &kind), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "'fp8'", "bf16", "powersgd");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("comm_hook");
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_loop_test(core, sixteen_bits_are_half_the_bytes_and_nearly_the_mean, 0, 6);
    tcase_add_loop_test(core, what_is_not_finite_stays_so, 0, 3);
    tcase_add_loop_test(core, powersgd_sends_a_matrix_of_rank_one_exactly, 0, 3);
    tcase_add_loop_test(core, powersgd_makes_up_for_what_it_left_out, 0, 3);
    tcase_add_test(core, powersgd_starts_when_it_is_told);
    tcase_add_test(core, words_are_those_of_the_help);
    return suite_run(suite);
}
