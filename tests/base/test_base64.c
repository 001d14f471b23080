/* Bytes as base64, and back. */
#include "base/digest.h"
#include "tests/support/suite.h"

#include <string.h>

START_TEST(the_vectors_of_the_rfc)
{
    static const char *const pairs[][2] = {{"", ""},
                                           {"f", "Zg=="},
                                           {"fo", "Zm8="},
                                           {"foo", "Zm9v"},
                                           {"foob", "Zm9vYg=="},
                                           {"fooba", "Zm9vYmE="},
                                           {"foobar", "Zm9vYmFy"}};
    const char *bytes = pairs[_i][0], *text = pairs[_i][1];
    char out[16], back[16];
    size_t n = 99;
    ck_assert_uint_eq(BASE64_TEXT_BYTES(strlen(bytes)), strlen(text) + 1);
    base64_write(bytes, strlen(bytes), out);
    ck_assert_str_eq(out, text);
    ck_assert(base64_read(text, back, &n));
    ck_assert_uint_eq(n, strlen(bytes));
    ck_assert_int_eq(memcmp(back, bytes, n), 0);
}
END_TEST

START_TEST(every_byte_comes_back)
{
    unsigned char all[256], back[300];
    char text[BASE64_TEXT_BYTES(sizeof all)];
    size_t n = 0;
    for (int i = 0; i < 256; i++)
        all[i] = (unsigned char)i;
    base64_write(all, sizeof all, text);
    ck_assert_uint_eq(strlen(text) + 1, sizeof text);
    ck_assert(base64_read(text, back, &n));
    ck_assert_uint_eq(n, sizeof all);
    ck_assert_int_eq(memcmp(back, all, n), 0);
}
END_TEST

START_TEST(what_is_no_base64_is_refused)
{
    static const char *const texts[] = {"Z",    "Zg=",   "Zg",       "====", "Z===", "Zg==Zg==",
                                        "Zm9*", "Zm 9v", "Zm9v\n\n", "=m9v", "Zm=v", "\x80m9v"};
    char back[16];
    size_t n = 0;
    ck_assert_msg(!base64_read(texts[_i], back, &n), "%s is taken", texts[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base64");
    TCase *all = suite_case(suite, "base64", 10);
    tcase_add_loop_test(all, the_vectors_of_the_rfc, 0, 7);
    tcase_add_test(all, every_byte_comes_back);
    tcase_add_loop_test(all, what_is_no_base64_is_refused, 0, 12);
    return suite_run(suite);
}
