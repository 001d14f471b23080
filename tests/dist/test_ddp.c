/* Buckets as PyTorch fills them, means over ranks, overlap, and a backward pass that is not
 * complete. */
#include "base/clock.h"
#include "dist/ddp.h"
#include "tests/support/facts.h"
#include "tests/support/ranks.h"
#include "tests/support/suite.h"

#include <string.h>

/* weight and bias of fc1, fc2, fc3 */
static const size_t MLP_OFFSETS[] = {0, 401408, 401920, 664064, 664576, 669696};
/* weight and bias of conv1, conv2, fc1, fc2 */
static const size_t CNN_OFFSETS[] = {0, 288, 320, 18752, 18816, 1198464, 1198592, 1199872};
enum { MLP_COUNT = 669706, CNN_COUNT = 1199882 };

static const ddp_options PYTORCH = {1 << 20, 25 << 20, true, NULL};

static ddp *reducer_of(process_group *group, float *gradients, size_t count, const size_t *offsets,
                       size_t n)
{
    ddp *reducer = NULL;
    ck_assert_int_eq(
        ddp_create(group, gradients, &(ddp_parameters){count, offsets, n}, &PYTORCH, &reducer),
        STATUS_OK);
    return reducer;
}

static process_group *alone(void)
{
    process_group_options options = {.backend = "shm", .world_size = 1, .timeout_ms = 1000};
    process_group *group = NULL;
    ck_assert_int_eq(process_group_create(&options, &group), STATUS_OK);
    return group;
}

static void check_bucket(const ddp *reducer, size_t index, size_t offset, size_t count)
{
    size_t got_offset, got_count;
    ddp_bucket(reducer, index, &got_offset, &got_count);
    ck_assert_uint_eq(got_offset, offset);
    ck_assert_uint_eq(got_count, count);
}

START_TEST(buckets_are_pytorchs)
{
    process_group *group = alone();
    float none = 0; /* not touched by ddp_create */
    ddp *mlp = reducer_of(group, &none, MLP_COUNT, MLP_OFFSETS, 6);
    ck_assert_uint_eq(ddp_buckets(mlp), 2);
    check_bucket(mlp, 0, 401920, MLP_COUNT - 401920); /* fc2, fc3 */
    check_bucket(mlp, 1, 0, 401920);                  /* fc1 */
    ddp *cnn = reducer_of(group, &none, CNN_COUNT, CNN_OFFSETS, 8);
    ck_assert_uint_eq(ddp_buckets(cnn), 2);
    check_bucket(cnn, 0, 18816, CNN_COUNT - 18816); /* fc1, fc2 */
    check_bucket(cnn, 1, 0, 18816);                 /* conv1, conv2 */
    ddp_destroy(mlp);
    ddp_destroy(cnn);
    ddp_destroy(NULL);
    process_group_destroy(group);
}
END_TEST

/* Closed when it holds at least the cap: with one of 16 bytes, 3 + 1 floats close a bucket. */
START_TEST(a_full_bucket_is_closed)
{
    static const size_t offsets[] = {0, 2, 4, 7};
    static const ddp_options small = {4, 16, true, NULL};
    process_group *group = alone();
    float gradients[8] = {0};
    ddp *reducer = NULL;
    ck_assert_int_eq(
        ddp_create(group, gradients, &(ddp_parameters){8, offsets, 4}, &small, &reducer),
        STATUS_OK);
    ck_assert_uint_eq(ddp_buckets(reducer), 3);
    check_bucket(reducer, 0, 7, 1);
    check_bucket(reducer, 1, 2, 5);
    check_bucket(reducer, 2, 0, 2);
    ddp_destroy(reducer);
    process_group_destroy(group);
}
END_TEST

START_TEST(bad_offsets_are_refused)
{
    static const size_t late[] = {1, 2}, equal[] = {0, 0}, beyond[] = {0, 8};
    process_group *group = alone();
    float gradients[8] = {0};
    ddp *reducer = NULL;
    ck_assert_int_eq(
        ddp_create(group, gradients, &(ddp_parameters){8, late, 2}, &PYTORCH, &reducer),
        STATUS_INVALID);
    ck_assert_int_eq(
        ddp_create(group, gradients, &(ddp_parameters){8, equal, 2}, &PYTORCH, &reducer),
        STATUS_INVALID);
    ck_assert_int_eq(
        ddp_create(group, gradients, &(ddp_parameters){8, beyond, 2}, &PYTORCH, &reducer),
        STATUS_INVALID);
    ck_assert_int_eq(
        ddp_create(group, gradients, &(ddp_parameters){0, late, 0}, &PYTORCH, &reducer),
        STATUS_INVALID);
    ck_assert_ptr_null(reducer);
    process_group_destroy(group);
}
END_TEST

START_TEST(slices_must_descend_and_adjoin)
{
    static const size_t offsets[] = {0, 4};
    process_group *group = alone();
    float gradients[8] = {0};
    ddp *reducer = reducer_of(group, gradients, 8, offsets, 2);
    ck_assert_int_eq(ddp_on_grad_ready(reducer, 0, 4, NULL), STATUS_INVALID);
    ck_assert_int_eq(ddp_on_grad_ready(reducer, 5, 3, NULL), STATUS_OK);
    ck_assert_int_eq(ddp_on_grad_ready(reducer, 3, 1, NULL), STATUS_INVALID);
    ck_assert_int_eq(ddp_on_grad_ready(reducer, 6, SIZE_MAX, NULL), STATUS_INVALID);
    ck_assert_int_eq(ddp_wait(reducer), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "[0, 5)");
    ck_assert_int_eq(ddp_on_grad_ready(reducer, 0, 5, NULL), STATUS_OK);
    ck_assert_int_eq(ddp_wait(reducer), STATUS_OK);
    ddp_destroy(reducer);
    process_group_destroy(group);
}
END_TEST

static const size_t SLICES[] = {0, 100, 250, 700};
enum { N_SLICES = 4, COUNT = 1003, STEPS = 5 };

static status step(ddp *reducer, float *gradients, int rank, int number)
{
    for (size_t i = 0; i < COUNT; i++)
        gradients[i] = (float)((int)i + number) * (float)(rank + 1);
    size_t end = COUNT;
    for (size_t i = N_SLICES; i-- > 0; end = SLICES[i])
        TRY(ddp_on_grad_ready(reducer, SLICES[i], end - SLICES[i], NULL));
    return ddp_wait(reducer);
}

/* Two ranks with i and 2 i: their mean, 1.5 i, is exact. */
static status mean_of_two(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size;
    static const ddp_options some = {1024, 1500, true, NULL}, late = {1024, 1500, false, NULL};
    float *gradients = NULL;
    ddp *reducer = NULL;
    TRY(process_group_alloc(group, COUNT * sizeof *gradients, (void **)&gradients));
    TRY(ddp_create(group, gradients, &(ddp_parameters){COUNT, SLICES, N_SLICES},
                   arg == NULL ? &late : &some, &reducer));
    status st = STATUS_OK;
    for (int number = 0; number < STEPS && st == STATUS_OK; number++) {
        st = step(reducer, gradients, rank, number);
        for (size_t i = 0; i < COUNT && st == STATUS_OK; i++) {
            float want = 1.5f * (float)((int)i + number);
            if (gradients[i] < want || gradients[i] > want)
                st = FAIL(STATUS_INVALID, "step %d [%zu]: %g, want %g", number, i,
                          (double)gradients[i], (double)want);
        }
    }
    ddp_times times = ddp_elapsed(reducer);
    if (st == STATUS_OK && (times.comm_ns <= 0 || times.exposed_ns <= 0))
        st = FAIL(STATUS_INVALID, "no time was spent");
    ddp_destroy(reducer);
    return st;
}

START_TEST(gradients_become_means)
{
    ranks_options options = {.world_size = 2, .shared_bytes = 1 << 16};
    ck_assert_int_eq(run_ranks_with(&options, mean_of_two, _i == 0 ? NULL : &options), STATUS_OK);
}
END_TEST

/* A slow wire of 20 ms per bucket, two buckets, 30 ms of backward pass after the first: with
 * overlap the first is through by then, and only the second's 20 ms are exposed. */
static status hides_communication(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    (void)world_size;
    static const size_t offsets[] = {0, 500};
    ddp_options options = {4, 4, *(const bool *)arg, NULL};
    float gradients[1000] = {0};
    ddp *reducer = NULL;
    TRY(ddp_create(group, gradients, &(ddp_parameters){1000, offsets, 2}, &options, &reducer));
    status st = ddp_on_grad_ready(reducer, 500, 500, NULL);
    clock_sleep_ms(30);
    if (st == STATUS_OK)
        st = ddp_on_grad_ready(reducer, 0, 500, NULL);
    if (st == STATUS_OK)
        st = ddp_wait(reducer);
    ddp_times times = ddp_elapsed(reducer);
    ddp_destroy(reducer);
    if (st == STATUS_OK && options.overlap &&
        (times.exposed_ns > 35000000 || times.exposed_ns >= times.comm_ns))
        st = FAIL(STATUS_INVALID, "of %lld ns, %lld are exposed", (long long)times.comm_ns,
                  (long long)times.exposed_ns);
    if (st == STATUS_OK && !options.overlap && times.exposed_ns < 40000000)
        st = FAIL(STATUS_INVALID, "only %lld ns exposed of two messages that take 20 ms each",
                  (long long)times.exposed_ns);
    return st;
}

/* Beside other work a thread may come late, but not each time: the best counts. */
START_TEST(overlap_hides_communication)
{
    ranks_options options = {.world_size = 2, .inject_delay_ms = 20};
    bool overlap = _i == 1;
    status st = STATUS_TIMEOUT;
    for (int i = 0; i < (overlap ? 25 : 1) && st != STATUS_OK; i++)
        st = run_ranks_with(&options, hides_communication, &overlap);
    ck_assert_int_eq(st, STATUS_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ddp");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_test(core, buckets_are_pytorchs);
    tcase_add_test(core, a_full_bucket_is_closed);
    tcase_add_test(core, bad_offsets_are_refused);
    tcase_add_test(core, slices_must_descend_and_adjoin);
    tcase_add_loop_test(core, gradients_become_means, 0, 2);
    tcase_add_loop_test(core, overlap_hides_communication, 0, 2);
    return suite_run(suite);
}
