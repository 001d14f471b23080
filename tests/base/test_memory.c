/* Memory for arithmetic is aligned and zeroed, whatever its size and what lay there before. Copies
 * past the caches copy. */
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

/* Every begin and length up to some cache lines, and nothing beside it. */
START_TEST(a_stream_is_a_copy)
{
    enum { MOST = 400, FROM = 64 };
    unsigned char in[MOST + FROM], out[MOST + FROM + 1];
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)(i * 7 + i / 256 + 1);
    for (size_t skip = 0; skip < FROM; skip += 3)
        for (size_t n = 0; n <= MOST; n++) {
            memset(out, 0, sizeof out);
            memory_stream(out + skip, in + (n + skip) % FROM, n);
            ck_assert_mem_eq(out + skip, in + (n + skip) % FROM, n);
            ck_assert(skip == 0 || out[skip - 1] == 0);
            ck_assert_int_eq(out[skip + n], 0);
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
    tcase_add_test(core, a_stream_is_a_copy);
    tcase_add_test(core, too_large_is_refused);
    return suite_run(suite);
}
