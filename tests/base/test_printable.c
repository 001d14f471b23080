/* Foreign text on its way to a terminal. */
#include "base/log.h"
#include "base/text.h"
#include "tests/support/suite.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct {
    printable_kind kind;
    const char *text, *want;
} CASES[] = {
    {PRINTABLE_LINE, "", ""},
    {PRINTABLE_LINE, "plain text, ~ and 'quotes'", "plain text, ~ and 'quotes'"},
    {PRINTABLE_LINE, "\x1b]0;owned\x07", "\\x1b]0;owned\\x07"},
    {PRINTABLE_LINE, "a\tb\rc\x7f", "a\\x09b\\x0dc\\x7f"},
    {PRINTABLE_LINE, "one\n two", "one\\n two"},
    {PRINTABLE_LINES, "one\n  two\n", "one\n  two\n"},
    {PRINTABLE_LINES, "one\nerror: two\n", "one\\nerror: two\n"},
    {PRINTABLE_LINE, "M\xc3\xbcller \xe2\x82\xac \xf0\x9f\x98\x80",
     "M\xc3\xbcller \xe2\x82\xac \xf0\x9f\x98\x80"},
    {PRINTABLE_LINE,
     "\x9b"
     "31m \xc2\x9b",
     "\\x9b31m \\xc2\\x9b"},                                                 /* CSI in one byte */
    {PRINTABLE_LINE, "\xc0\x9b \xe0\x80\x9b", "\\xc0\\x9b \\xe0\\x80\\x9b"}, /* overlong */
    {PRINTABLE_LINE, "\xed\xa0\x80 \xf5\x80\x80\x80", "\\xed\\xa0\\x80 \\xf5\\x80\\x80\\x80"},
    {PRINTABLE_LINE, "cut \xe2\x82", "cut \\xe2\\x82"},
    {PRINTABLE_LINE, "\xe2\x80\xaegnp.exe", "\\xe2\\x80\\xaegnp.exe"}, /* right to left */
};

START_TEST(only_text_remains)
{
    char out[200];
    printable_copy(CASES[_i].kind, CASES[_i].text, out, sizeof out);
    ck_assert_str_eq(out, CASES[_i].want);
}
END_TEST

/* Every byte and every pair of bytes: nothing below a blank comes out, at no length. */
START_TEST(no_byte_gets_through)
{
    for (int x = 1; x < 0x10000; x++) {
        char text[3] = {(char)(x & 0xff), (char)(x >> 8), '\0'}, out[12];
        for (size_t room = 1; room <= sizeof out; room++) {
            memset(out, '!', sizeof out);
            printable_copy(PRINTABLE_LINE, text, out, room);
            bool fits = strlen(out) < room;
            for (const char *at = out; *at != '\0'; at++)
                fits = fits && (unsigned char)*at >= ' ' && *at != 0x7f;
            if (!fits) /* each assertion is a write */
                ck_abort_msg("%#x in %zu bytes", (unsigned)x, room);
        }
    }
}
END_TEST

/* The last byte begins a character that does not end in them. */
START_TEST(bytes_have_a_length)
{
    char out[40];
    printable_bytes("a\0\n\xc3\xa4", 4, out, sizeof out);
    ck_assert_str_eq(out, "a\\x00\\n\\xc3");
    printable_bytes(NULL, 0, out, sizeof out);
    ck_assert_str_eq(out, "");
}
END_TEST

START_TEST(a_log_line_is_one_line)
{
    int ends[2];
    char said[200] = "";
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_ge(dup2(ends[1], STDERR_FILENO), 0);
    LOG_E("a peer says: %s", "hello\nwarning: \x1b[2J");
    ck_assert_int_gt(read(ends[0], said, sizeof said - 1), 0);
    ck_assert_str_eq(said, "error: a peer says: hello\\nwarning: \\x1b[2J\n");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("printable");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_loop_test(core, only_text_remains, 0, sizeof CASES / sizeof CASES[0]);
    tcase_add_test(core, no_byte_gets_through);
    tcase_add_test(core, bytes_have_a_length);
    tcase_add_test(core, a_log_line_is_one_line);
    return suite_run(suite);
}
