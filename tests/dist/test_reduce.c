/* Reductions of each type and operation, over some numbers of ranks, against plain loops in double.
 */
#include "base/half.h"
#include "dist/collective/collective.h"
#include "tests/support/suite.h"

#include <stdint.h>
#include <string.h>

enum {
    MOST = 1500,
    MOST_RANKS = 5
}; /* more than one block of the reductions, and not whole ones */

static const size_t COUNTS[] = {1, 7, 512, MOST};

/* Small integers: all that they reduce to is exact, except averages. */
static int number(int rank, size_t i)
{
    return (int)((i * 5 + (size_t)rank * 3) % 9) + 1 - 2 * (rank % 2);
}

static void put(dtype type, void *data, size_t i, int value)
{
    switch (type) {
    case DTYPE_F32:
        ((float *)data)[i] = (float)value;
        break;
    case DTYPE_F64:
        ((double *)data)[i] = value;
        break;
    case DTYPE_I64:
        ((int64_t *)data)[i] = value;
        break;
    case DTYPE_BF16:
        ((uint16_t *)data)[i] = f32_to_bf16((float)value);
        break;
    case DTYPE_F16:
        ((uint16_t *)data)[i] = f32_to_f16((float)value);
        break;
    default:
        ((uint8_t *)data)[i] = (uint8_t)value;
    }
}

static double get(dtype type, const void *data, size_t i)
{
    switch (type) {
    case DTYPE_F32:
        return (double)((const float *)data)[i];
    case DTYPE_F64:
        return ((const double *)data)[i];
    case DTYPE_I64:
        return (double)((const int64_t *)data)[i];
    case DTYPE_BF16:
        return (double)bf16_to_f32(((const uint16_t *)data)[i]);
    case DTYPE_F16:
        return (double)f16_to_f32(((const uint16_t *)data)[i]);
    default:
        return ((const uint8_t *)data)[i];
    }
}

/* The number as `type` has it. */
static double rounded(dtype type, double value)
{
    switch (type) {
    case DTYPE_F32:
        return (double)(float)value;
    case DTYPE_I64:
        return (double)(int64_t)value;
    case DTYPE_BF16:
        return (double)bf16_to_f32(f32_to_bf16((float)value));
    case DTYPE_F16:
        return (double)f16_to_f32(f32_to_f16((float)value));
    case DTYPE_U8:
        return (double)((uint64_t)(int64_t)value & 0xff);
    default:
        return value;
    }
}

static double wanted(dtype type, reduce_op op, int ranks, size_t i)
{
    double acc = rounded(type, number(0, i));
    for (int rank = 1; rank < ranks; rank++) {
        double x = rounded(type, number(rank, i));
        if (op == REDUCE_PROD)
            acc *= x;
        else if (op == REDUCE_SUM || op == REDUCE_AVG)
            acc += x;
        else if (op == REDUCE_MIN ? x < acc : x > acc)
            acc = x;
    }
    if (type == DTYPE_U8)
        acc = rounded(type, acc);
    return rounded(type, op == REDUCE_AVG ? acc / ranks : acc);
}

static unsigned char memory[MOST_RANKS][MOST * sizeof(double)];

static void fill(dtype type)
{
    for (int rank = 0; rank < MOST_RANKS; rank++)
        for (size_t i = 0; i < MOST; i++)
            put(type, memory[rank], i, number(rank, i));
}

static void expect(dtype type, reduce_op op, int ranks, size_t count, const void *data)
{
    for (size_t i = 0; i < count; i++) {
        double got = get(type, data, i), want = wanted(type, op, ranks, i);
        if (got < want || got > want) /* a check that passes costs a system call */
            ck_abort_msg("%s %s of %d ranks: [%zu] is %g, want %g", dtype_name(type),
                         reduce_op_name(op), ranks, i, got, want);
    }
}

START_TEST(all_buffers_become_the_reduction)
{
    dtype type = (dtype)_i;
    for (int op = 0; op < REDUCE_OP_COUNT; op++)
        for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
            for (size_t n = 0; n < sizeof COUNTS / sizeof COUNTS[0]; n++) {
                void *buffers[MOST_RANKS];
                fill(type);
                for (int rank = 0; rank < ranks; rank++)
                    buffers[rank] = memory[rank];
                reduce_buffers(type, (reduce_op)op, 1, buffers, ranks, COUNTS[n]);
                for (int rank = 0; rank < ranks; rank++)
                    expect(type, (reduce_op)op, ranks, COUNTS[n], memory[rank]);
                if (COUNTS[n] < MOST)
                    ck_assert(
                        get(type, memory[0], COUNTS[n]) >= rounded(type, number(0, COUNTS[n])) &&
                        get(type, memory[0], COUNTS[n]) <= rounded(type, number(0, COUNTS[n])));
            }
}
END_TEST

/* Step by step, with a division at the end for an average. */
START_TEST(a_fold_and_a_division_make_the_same)
{
    dtype type = (dtype)_i;
    for (int op = 0; op < REDUCE_OP_COUNT; op++) {
        fill(type);
        for (int rank = 1; rank < 3; rank++)
            reduce_fold(type, (reduce_op)op, memory[0], memory[rank], MOST);
        if (op == REDUCE_AVG)
            reduce_divide(type, memory[0], MOST, 3);
        expect(type, (reduce_op)op, 3, MOST, memory[0]);
    }
}
END_TEST

/* 1 + 2^-8 + 2^-8 is not 1 if it is summed in float32. */
START_TEST(a_16_bit_sum_is_rounded_once)
{
    uint16_t one = f32_to_bf16(1), small = f32_to_bf16(0x1p-8f), out = 0;
    const void *in[] = {&one, &small, &small};
    reduce_parts parts = {in, 3, (void *const[]){&out}, 1};
    reduce_into(DTYPE_BF16, REDUCE_SUM, 1, &parts, 1);
    ck_assert_uint_eq(out, f32_to_bf16(1 + 0x1p-7f));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reduce");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_loop_test(core, all_buffers_become_the_reduction, 0, DTYPE_COUNT);
    tcase_add_loop_test(core, a_fold_and_a_division_make_the_same, 0, DTYPE_COUNT);
    tcase_add_test(core, a_16_bit_sum_is_rounded_once);
    return suite_run(suite);
}
