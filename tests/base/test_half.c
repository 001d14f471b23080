/* 16-bit floats, against all their bit patterns and against arithmetic in double. */
#include "base/half.h"
#include "tests/support/suite.h"

#include <math.h>
#include <stdbool.h>

typedef float widen_fn(uint16_t bits);
typedef uint16_t narrow_fn(float value);

typedef struct format {
    widen_fn *widen;
    narrow_fn *narrow;
    int exponent_bits, fraction_bits;
} format;

static const format FORMATS[] = {{bf16_to_f32, f32_to_bf16, 8, 7}, {f16_to_f32, f32_to_f16, 5, 10}};

/* By the definition of a binary float. */
static double value_of(const format *f, uint16_t bits)
{
    int bias = (1 << (f->exponent_bits - 1)) - 1, top = (1 << f->exponent_bits) - 1;
    int exponent = bits >> f->fraction_bits & top, fraction = bits & ((1 << f->fraction_bits) - 1);
    double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == top)
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    int lifted = exponent == 0 ? fraction : fraction | 1 << f->fraction_bits;
    return sign * ldexp(lifted, (exponent == 0 ? 1 : exponent) - bias - f->fraction_bits);
}

static bool same(double a, double b)
{
    return (isnan(a) && isnan(b)) || (!(a < b) && !(a > b) && signbit(a) == signbit(b));
}

START_TEST(every_pattern_is_its_number_and_comes_back)
{
    const format *f = &FORMATS[_i];
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float wide = f->widen((uint16_t)bits);
        ck_assert_msg(same((double)wide, value_of(f, (uint16_t)bits)), "%04x is %a", bits,
                      (double)wide);
        uint16_t back = f->narrow(wide);
        ck_assert_msg(back == bits || isnan(wide), "%04x comes back as %04x", bits, back);
        ck_assert_int_eq(isnan(wide) != 0, isnan(f->widen(back)) != 0);
    }
}
END_TEST

/* Between two neighbours: below the middle, at it, above it. */
START_TEST(a_number_between_two_goes_to_the_nearer_one_and_a_tie_to_the_even_one)
{
    const format *f = &FORMATS[_i];
    uint16_t infinity = (uint16_t)(((1 << f->exponent_bits) - 1) << f->fraction_bits);
    for (uint16_t low = 0; low + 1 < infinity; low++) {
        double a = value_of(f, low), b = value_of(f, (uint16_t)(low + 1)), middle = (a + b) / 2;
        float at = (float)middle;
        if (same((double)at, middle)) {
            ck_assert_uint_eq(f->narrow(at), low + low % 2);
            ck_assert_uint_eq(f->narrow(-at), 0x8000 | (low + low % 2));
        }
        ck_assert_uint_eq(f->narrow(nextafterf(at, 0)), low);
        ck_assert_uint_eq(f->narrow(nextafterf(at, INFINITY)), low + 1);
    }
    ck_assert_uint_eq(f->narrow(INFINITY), infinity);
    ck_assert_uint_eq(f->narrow(3.39e38f), f->exponent_bits == 5 ? infinity : 0x7f80 - 1);
}
END_TEST

/* The array functions, of lengths that are no whole vectors. */
START_TEST(arrays_have_the_same_bits)
{
    enum { MOST = 0x10000 };
    static uint16_t bits[MOST], narrowed[MOST];
    static float wide[MOST];
    const format *f = &FORMATS[_i];
    bool bf16 = f->widen == bf16_to_f32;
    for (uint32_t i = 0; i < MOST; i++)
        bits[i] = (uint16_t)(i * 40503u);
    for (size_t n = MOST - 3; n <= MOST; n++) {
        (bf16 ? half_widen_bf16 : half_widen_f16)(bits, wide, n);
        size_t wrong = 0; /* an assertion for each takes longer than all else */
        for (size_t i = 0; i < n; i++)
            wrong += !same((double)wide[i], (double)f->widen(bits[i]));
        ck_assert_uint_eq(wrong, 0);
        for (size_t i = 0; i < n; i++)
            wide[i] *= i % 2 == 0 ? 1.0009765f : 0.3333f;
        (bf16 ? half_narrow_bf16 : half_narrow_f16)(wide, narrowed, n);
        for (size_t i = 0; i < n; i++)
            wrong += narrowed[i] != f->narrow(wide[i]) && !isnan(wide[i]);
        ck_assert_uint_eq(wrong, 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("half");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_loop_test(core, every_pattern_is_its_number_and_comes_back, 0, 2);
    tcase_add_loop_test(core, a_number_between_two_goes_to_the_nearer_one_and_a_tie_to_the_even_one,
                        0, 2);
    tcase_add_loop_test(core, arrays_have_the_same_bits, 0, 2);
    return suite_run(suite);
}
