/* The store's table by itself: what it takes of memory. */
#include "dist/store/store_session.h"
#include "tests/support/suite.h"

#include <malloc.h>
#include <stdint.h>

/* Of short keys and values what is kept beside them is the larger part. */
START_TEST(a_full_table_takes_no_more_than_its_limit)
{
    enum { LIMIT_BYTES = 4 << 20 };
    store_table *table = NULL;
    uint32_t key = 0;
    size_t before = mallinfo2().uordblks;
    ck_assert_int_eq(store_table_create(LIMIT_BYTES, &table), STATUS_OK);
    while (store_table_set(table, (store_bytes){(const uint8_t *)&key, sizeof key},
                           (store_bytes){(const uint8_t *)"x", 1}) == STATUS_OK)
        key++;
    size_t taken = mallinfo2().uordblks - before;
    ck_assert_uint_gt(key, 10000);
    ck_assert_uint_le(taken, LIMIT_BYTES);
    store_table_destroy(table);
}
END_TEST

int main(void)
{
#ifdef SANITIZED
    printf("SKIP: a sanitizer's allocator does not say what it gives\n");
    return TEST_SKIPPED;
#endif
    Suite *suite = suite_create("store_table");
    tcase_add_test(suite_case(suite, "core", 20), a_full_table_takes_no_more_than_its_limit);
    return suite_run(suite);
}
