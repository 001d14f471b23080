/* The demonstrations that show real trainings, against numbers that are computed here. */
#include "tests/app/support/demo_run.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"
#include "tests/support/program.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* The CNN's parameters, and the one number that travels with the gradients. */
enum {
    CONV = 32 * 9 + 32 + 64 * 32 * 9 + 64,
    FC1 = 9216 * 128 + 128,
    FC2 = 128 * 10 + 10,
    PARAMETERS = CONV + FC1 + FC2,
    CARRIED = 1,
};

static const json_t *fact_of(const json_t *document, const char *name)
{
    return json_object_get(json_object_get(document, "facts"), name);
}

static double number_in(const json_t *object, const char *key)
{
    ck_assert(json_is_number(json_object_get(object, key)));
    return json_number_value(json_object_get(object, key));
}

static void check_bucket(const json_t *document, size_t index, const char *tensors, int floats)
{
    const json_t *bucket = json_array_get(fact_of(document, "buckets"), index);
    ck_assert_str_eq(json_string_value(json_object_get(bucket, "tensors")), tensors);
    ck_assert_double_eq(number_in(bucket, "bytes"), 4.0 * floats);
}

/* PyTorch's: filled from the last parameter on, the first one to 1 MiB. With overlap the first
 * leaves before backward ends, and without it none does: then all their delays are waited for. */
START_TEST(buckets_leave_during_backward)
{
    json_t *document = demo_run("buckets");
    ck_assert_uint_eq(json_array_size(fact_of(document, "buckets")), 2);
    check_bucket(document, 0, "fc1.weight, fc1.bias, fc2.weight, fc2.bias", FC1 + FC2 + CARRIED);
    check_bucket(document, 1, "conv1.weight, conv1.bias, conv2.weight, conv2.bias", CONV);
    const json_t *with = fact_of(document, "overlap"), *without = fact_of(document, "no_overlap");
    const json_t *sent = json_object_get(with, "sent_ms");
    ck_assert(json_number_value(json_array_get(sent, 0)) < number_in(with, "backward_end_ms"));
    sent = json_object_get(without, "sent_ms");
    for (size_t i = 0; i < 2; i++)
        ck_assert(json_number_value(json_array_get(sent, i)) >=
                  number_in(without, "backward_end_ms"));
    ck_assert_double_ge(number_in(without, "waits_ms"), 2 * 10 - 0.1);
    json_decref(document);
}
END_TEST

START_TEST(a_smaller_cap_makes_more_buckets)
{
    json_t *document = demo_run("buckets --bucket-cap-mb=0.001 --inject-delay-ms=1");
    check_bucket(document, 0, "fc2.weight, fc2.bias", FC2 + CARRIED);
    check_bucket(document, 1, "fc1.weight, fc1.bias", FC1);
    check_bucket(document, 2, "conv2.weight, conv2.bias", 64 * 32 * 9 + 64);
    check_bucket(document, 3, "conv1.weight, conv1.bias", 32 * 9 + 32);
    json_decref(document);
}
END_TEST

/* torch.chunk: 30 for 3 are 10, 10, 10; 5 for 4 are 2, 2, 1 and one idle. The master sends each
 * other one that works the weights, its images, their numbers and the gradients of its outputs, and
 * receives outputs and gradients. */
START_TEST(a_batch_is_cut)
{
    static const struct {
        const char *line;
        int replicas, rows[4], links;
    } cases[] = {{"dp", 3, {10, 10, 10}, 2},
                 {"dp --replicas=4 --batch-size=5", 4, {2, 2, 1, 0}, 2}};
    json_t *document = demo_run(cases[_i].line);
    const json_t *rows = fact_of(document, "rows");
    double sent = 0, received = 0;
    ck_assert_uint_eq(json_array_size(rows), (size_t)cases[_i].replicas);
    for (int i = 0; i < cases[_i].replicas; i++) {
        int n = cases[_i].rows[i];
        ck_assert_int_eq((int)json_integer_value(json_array_get(rows, (size_t)i)), n);
        if (i > 0 && n > 0) {
            sent += 4.0 * (PARAMETERS + n * (28 * 28 + 1 + 10));
            received += 4.0 * (PARAMETERS + n * 10);
        }
    }
    ck_assert_double_eq(demo_run_fact(document, "sent"), sent);
    ck_assert_double_eq(demo_run_fact(document, "received"), received);
    double n = cases[_i].replicas;
    ck_assert_double_eq_tol(demo_run_fact(document, "ddp_sent"),
                            2 * (n - 1) / n * 4 * (PARAMETERS + CARRIED), 16);
    json_decref(document);
}
END_TEST

/* The mean of 0.25, 0.5, ... and a step of 0.5; then N - 1 times what an all-reduce's rank gets in
 * 2 (N - 1) / N. Beside gradients and weights go a few numbers of the program's own. */
START_TEST(a_server_carries_all)
{
    int n = _i;
    char line[64];
    snprintf(line, sizeof line, "ps --nproc-per-node=%d", n);
    json_t *document = demo_run(line);
    ck_assert_double_eq_tol(demo_run_fact(document, "weight"), 1 - 0.5 * 0.25 * (n + 1) / 2, 1e-12);
    double whole = 4.0 * PARAMETERS, few = 16.0 * n;
    ck_assert_double_eq_tol(demo_run_fact(document, "ps_sent"), (n - 1) * whole, few);
    ck_assert_double_eq_tol(demo_run_fact(document, "ps_received"), (n - 1) * whole, few);
    ck_assert_double_eq_tol(demo_run_fact(document, "ddp_sent"), 2.0 * (n - 1) / n * whole, few);
    json_decref(document);
}
END_TEST

/* The nearest number with so many bits of fraction, ties to even; below 2^least the steps stay. */
static double rounded(double value, int fraction_bits, int least)
{
    int exponent = ilogb(value) > least ? ilogb(value) : least;
    double step = ldexp(1, exponent - fraction_bits);
    return nearbyint(value / step) * step;
}

/* But for the ten digits that --json prints. */
static void check_rounded(const json_t *cell, double want)
{
    ck_assert_double_le(fabs(json_number_value(cell) - want), 1e-9 * want);
}

START_TEST(gradients_are_rounded)
{
    json_t *document = demo_run("precision");
    for (int row = 0; row < 4; row++) {
        double value = json_number_value(demo_run_cell(document, 1, row, 1));
        ck_assert(value > 0);
        check_rounded(demo_run_cell(document, 1, row, 2), rounded(value, 10, -14));
        check_rounded(demo_run_cell(document, 1, row, 3), rounded(value, 7, -126));
    }
    /* format, factor, became 0, infinite, error; the last is bf16's */
    const json_t *scales = fact_of(document, "scales"), *row;
    size_t i, n = json_array_size(scales);
    ck_assert_uint_eq(n, 7);
    double before = demo_run_fact(document, "fp16_zero");
    json_array_foreach(scales, i, row) if (i + 1 < n)
    {
        double zero = json_number_value(json_array_get(row, 2));
        ck_assert_double_le(zero, before);
        before = zero;
    }
    ck_assert_double_eq(before, 0); /* by 2^24 */
    ck_assert_double_eq(demo_run_fact(document, "bf16_zero"), 0);
    /* bf16 has three bits less: steps of eight times the size */
    double coarse = json_number_value(json_array_get(json_array_get(scales, 6), 4));
    double fine = json_number_value(json_array_get(json_array_get(scales, 4), 4));
    ck_assert_double_eq_tol(coarse / fine, 8, 0.8);
    const json_t *moved = fact_of(document, "moved");
    ck_assert(json_integer_value(json_array_get(moved, 2)) <
              json_integer_value(json_array_get(moved, 1)));
    json_decref(document);
}
END_TEST

/* All print one loss, the first of which is that of a run of our own; and two ranks send a server
 * the same gradients as they average among themselves. */
START_TEST(one_batch_has_one_loss)
{
    static const char *const modes[] = {"single", "dp", "ddp", "ps"};
    json_t *document = demo_run("one-batch-four-ways");
    const json_t *single = fact_of(document, "single");
    for (int i = 0; i < 4; i++) {
        char name[32];
        const json_t *losses = fact_of(document, modes[i]);
        ck_assert_uint_eq(json_array_size(losses), 3);
        for (size_t step = 0; step < 3; step++)
            ck_assert_double_eq_tol(json_number_value(json_array_get(losses, step)),
                                    json_number_value(json_array_get(single, step)), 2e-6);
        snprintf(name, sizeof name, "%s_distance", modes[i]);
        ck_assert_double_le(demo_run_fact(document, name), 1e-3);
    }
    ck_assert_double_eq(demo_run_fact(document, "single_distance"), 0);
    ck_assert_double_eq(demo_run_fact(document, "ddp_to_ps"), 0);
    program p = program_run_line("train --model=cnn --limit=60 --batch-size=60 --epochs=1 --json "
                                 "--quiet --device=cpu --eval-every=0 --no-save-model");
    ASSERT_EXIT(p, 0);
    json_t *result = json_loads(p.out, 0, NULL);
    ck_assert_double_eq_tol(number_in(result, "last_loss"),
                            json_number_value(json_array_get(single, 0)), 6e-5);
    json_decref(result);
    program_close(&p);
    json_decref(document);
    p = program_run_line("demo one-batch-four-ways --nproc-per-node=4 --batch-size=30");
    ck_assert_int_ne(p.exit_code, 0);
    ASSERT_FACTS(p.err, "30", "4", "--batch-size");
    program_close(&p);
}
END_TEST

/* Rank r of dp=2,pp=2 is r / 2 along dp and r % 2 along pp. The first stage has the convolutions:
 * 9216 elements of a sample go on, and along dp its gradients, with the one number. */
START_TEST(a_mesh_has_two_axes)
{
    static const double sums[4][2] = {{101, 11}, {1010, 11}, {101, 1100}, {1010, 1100}};
    static const char *const places[] = {"rank 0 of 2", "rank 1 of 2"};
    json_t *document = demo_run("mesh");
    for (int rank = 0; rank < 4; rank++)
        for (int axis = 0; axis < 2; axis++) {
            const json_t *place = demo_run_cell(document, 1, rank, 1 + axis);
            ck_assert_str_eq(json_string_value(place), places[axis == 0 ? rank / 2 : rank % 2]);
            ck_assert_double_eq(json_number_value(demo_run_cell(document, 2, rank, 2 + axis)),
                                sums[rank][axis]);
        }
    ck_assert_int_eq((int)json_integer_value(demo_run_cell(document, -1, 0, 2)), 4);
    ck_assert_double_eq(demo_run_fact(document, "pp_send"), 32 * 9216 * 4);
    ck_assert_double_eq(demo_run_fact(document, "pp_recv"), 32 * 9216 * 4);
    ck_assert_double_eq(demo_run_fact(document, "dp_all_reduce"), 4 * (CONV + CARRIED));
    json_decref(document);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("demo_training");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_test(core, buckets_leave_during_backward);
    tcase_add_test(core, a_smaller_cap_makes_more_buckets);
    tcase_add_loop_test(core, a_batch_is_cut, 0, 2);
    tcase_add_loop_test(core, a_server_carries_all, 2, 4);
    tcase_add_test(core, gradients_are_rounded);
    tcase_add_test(core, a_mesh_has_two_axes);
    tcase_add_test(core, one_batch_has_one_loss);
    return test_folder_close(suite_run(suite));
}
