/* Memory for arithmetic is aligned and zeroed, whatever its size and what lay there before. */
#include "base/memory.h"

#include "tests/support/suite.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const size_t SIZES[] = {
    0, 1, 64, 4095, 262143, 262144, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 4799144, 9 << 20};

START_TEST(blocks_are_aligned_and_zeroed)
{
    size_t size = SIZES[_i];
    for (int round = 0; round < 3; round++) {
        unsigned char *blocks[2];
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(memory_alloc(size, (void **)&blocks[i]), STATUS_OK);
            ck_assert_uint_eq((uintptr_t)blocks[i] % 64, 0);
            for (size_t at = 0; at < size; at++)
                if (blocks[i][at] != 0)
                    ck_abort_msg("byte %zu of %zu is %d", at, size, blocks[i][at]);
            memset(blocks[i], 0xff, size);
        }
        free(blocks[0]);
        free(blocks[1]);
    }
}
END_TEST

START_TEST(too_large_is_refused)
{
    void *block = NULL;
    ck_assert_int_eq(memory_alloc(SIZE_MAX, &block), STATUS_NO_MEMORY);
    ck_assert_int_eq(memory_alloc(SIZE_MAX - 63, &block), STATUS_NO_MEMORY);
    ck_assert_ptr_null(block);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("memory");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_loop_test(core, blocks_are_aligned_and_zeroed, 0, sizeof SIZES / sizeof SIZES[0]);
    tcase_add_test(core, too_large_is_refused);
    return suite_run(suite);
}
