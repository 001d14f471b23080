/* A piece that was given back serves again, zeroed. */
#include "base/memory.h"

#include "tests/support/suite.h"

#include <string.h>

enum { PIECE_BYTES = 48 };

static unsigned char *take_zeroed(spares *s)
{
    static const unsigned char zeros[PIECE_BYTES];
    unsigned char *piece = spares_take(s, PIECE_BYTES);
    ck_assert_ptr_nonnull(piece);
    ck_assert_mem_eq(piece, zeros, PIECE_BYTES);
    memset(piece, 0xa5, PIECE_BYTES);
    return piece;
}

START_TEST(what_was_given_back_serves_again)
{
    spares s = {0};
    unsigned char *first = take_zeroed(&s), *second = take_zeroed(&s);
    ck_assert_ptr_ne(first, second);
    spares_give(&s, first);
    spares_give(&s, second);
    unsigned char *again[] = {take_zeroed(&s), take_zeroed(&s)};
    ck_assert_ptr_eq(again[0], second);
    ck_assert_ptr_eq(again[1], first);
    spares_give(&s, first);
    spares_give(&s, second);
    spares_free(&s);
    spares_free(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("spares");
    tcase_add_test(suite_case(suite, "core", 10), what_was_given_back_serves_again);
    return suite_run(suite);
}
