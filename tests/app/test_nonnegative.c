/* Non-negative least squares against what is known of its answer. */
#include "app/bench/nonnegative.h"
#include "base/mt19937.h"
#include "tests/support/suite.h"

#include <math.h>

enum { ROWS = 40, COLUMNS = 6 };

#define ASSERT_NEAR(got, want) ck_assert_double_eq_tol((got), (want), 1e-6 * fabs(want) + 1e-12)

static double uniform(mt19937 *random)
{
    return (mt19937_u32(random) >> 8) / (double)(1 << 24);
}

/* Columns as unlike as seconds, microseconds and bytes. */
static void random_columns(mt19937 *random, double *a)
{
    static const double sizes[COLUMNS] = {1, 1e6, 1e-6, 3, 1e9, 10};
    for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i++)
        a[i] = sizes[i % COLUMNS] * uniform(random);
}

static void products(const double *a, const double *x, double *y)
{
    for (size_t i = 0; i < ROWS; i++) {
        y[i] = 0;
        for (size_t j = 0; j < COLUMNS; j++)
            y[i] += a[i * COLUMNS + j] * x[j];
    }
}

START_TEST(finds_what_made_the_measurements)
{
    static const double truth[COLUMNS] = {0.5, 2e-6, 4e5, 0, 1e-9, 0.03};
    double a[ROWS * COLUMNS], y[ROWS], x[COLUMNS];
    mt19937 random;
    mt19937_init(&random, (uint64_t)_i);
    random_columns(&random, a);
    products(a, truth, y);
    ck_assert_int_eq(nonnegative_fit(a, y, NULL, ROWS, COLUMNS, x), STATUS_OK);
    for (size_t j = 0; j < COLUMNS; j++)
        ck_assert_double_eq_tol(x[j], truth[j], 1e-4 * truth[j] + 1e-5 * (j == 3));
}
END_TEST

/* The slope along column j, by the column's length. */
static double descent(const double *a, const double *y, const double *x, size_t j)
{
    double sum = 0, length = 0;
    for (size_t i = 0; i < ROWS; i++) {
        double got = 0, column = a[i * COLUMNS + j] / y[i];
        for (size_t k = 0; k < COLUMNS; k++)
            got += a[i * COLUMNS + k] * x[k];
        sum += column * (1 - got / y[i]);
        length += column * column;
    }
    return sum / sqrt(length);
}

/* At the least, no column held at zero promises a descent, and free ones are level. */
START_TEST(satisfies_the_conditions_of_a_least)
{
    double a[ROWS * COLUMNS], y[ROWS], x[COLUMNS];
    int held = 0;
    for (uint64_t seed = 0; seed < 50; seed++) {
        mt19937 random;
        mt19937_init(&random, seed);
        random_columns(&random, a);
        for (size_t i = 0; i < ROWS; i++)
            y[i] = 0.01 + uniform(&random) * uniform(&random); /* not made of the columns */
        ck_assert_int_eq(nonnegative_fit(a, y, NULL, ROWS, COLUMNS, x), STATUS_OK);
        for (size_t j = 0; j < COLUMNS; j++) {
            double slope = descent(a, y, x, j);
            ck_assert_double_ge(x[j], 0);
            ck_assert_double_le(x[j] > 0 ? fabs(slope) : slope, 1e-6);
            held += x[j] <= 0;
        }
    }
    ck_assert_int_gt(held, 0); /* else this proves little */
}
END_TEST

START_TEST(counts_errors_by_their_share)
{
    /* One constant for 1 and 100: the least of (x - 1)^2 + (x / 100 - 1)^2. */
    const double a[] = {1, 1}, y[] = {1, 100};
    double x[1];
    ck_assert_int_eq(nonnegative_fit(a, y, NULL, 2, 1, x), STATUS_OK);
    ASSERT_NEAR(x[0], 1.01 / 1.0001);
}
END_TEST

/* One measurement in eight is many times too slow: the others alone decide. */
START_TEST(a_robust_fit_is_not_moved_by_a_few)
{
    static const double truth[COLUMNS] = {0.5, 2e-6, 4e5, 0.2, 1e-9, 0.03};
    double a[ROWS * COLUMNS], y[ROWS], w[ROWS], x[COLUMNS], plain[COLUMNS];
    mt19937 random;
    mt19937_init(&random, (uint64_t)_i);
    random_columns(&random, a);
    products(a, truth, y);
    for (size_t i = 0; i < ROWS; i += 8)
        y[i] *= 5 + 20 * uniform(&random);
    ck_assert_int_eq(nonnegative_fit_robust(a, y, w, ROWS, COLUMNS, x), STATUS_OK);
    ck_assert_int_eq(nonnegative_fit(a, y, NULL, ROWS, COLUMNS, plain), STATUS_OK);
    double off = 0, plain_off = 0;
    for (size_t j = 0; j < COLUMNS; j++) {
        off = fmax(off, fabs(x[j] / truth[j] - 1));
        plain_off = fmax(plain_off, fabs(plain[j] / truth[j] - 1));
    }
    ck_assert_double_lt(off, 0.1);
    ck_assert_double_gt(plain_off, 2 * off);
}
END_TEST

START_TEST(columns_that_say_the_same_share)
{
    const double a[] = {1, 1, 0, 2, 2, 0, 3, 3, 0}, y[] = {2, 4, 6};
    double x[3];
    ck_assert_int_eq(nonnegative_fit(a, y, NULL, 3, 3, x), STATUS_OK);
    ASSERT_NEAR(x[0] + x[1], 2.0);
    ck_assert_double_eq(x[2], 0);
}
END_TEST

START_TEST(refuses_what_is_no_measurement)
{
    const double a[] = {1, 2}, good[] = {1, 1}, zero[] = {1, 0}, nan_[] = {(double)NAN, 1},
                 bad[] = {1, -2};
    double x[2];
    ck_assert_int_eq(nonnegative_fit(a, zero, NULL, 2, 1, x), STATUS_INVALID);
    ck_assert_int_eq(nonnegative_fit(a, nan_, NULL, 2, 1, x), STATUS_INVALID);
    ck_assert_int_eq(nonnegative_fit(bad, good, NULL, 2, 1, x), STATUS_INVALID);
    ck_assert_int_eq(nonnegative_fit(a, good, NULL, 0, 1, x), STATUS_INVALID);
    ck_assert_int_eq(nonnegative_fit(a, good, NULL, 2, NONNEGATIVE_MAX_COLUMNS + 1, x),
                     STATUS_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nonnegative");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_loop_test(core, finds_what_made_the_measurements, 0, 20);
    tcase_add_test(core, satisfies_the_conditions_of_a_least);
    tcase_add_test(core, counts_errors_by_their_share);
    tcase_add_loop_test(core, a_robust_fit_is_not_moved_by_a_few, 0, 20);
    tcase_add_test(core, columns_that_say_the_same_share);
    tcase_add_test(core, refuses_what_is_no_measurement);
    return suite_run(suite);
}
