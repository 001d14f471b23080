/* Pictures as text: each pixel where it belongs, in each style; which style a descriptor gets. */
#include "app/common/picture.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Three columns, three rows. */
static const uint8_t PIXELS[] = {255, 255, 0, /**/ 255, 0, 127, /**/ 128, 0, 255};
static const picture THREE = {PIXELS, 3, 3};
static const char GREY[] = "\033[38;5;%d;48;5;%dm▀";

static void expect_line(picture_style style, int line, const char *want)
{
    char text[3 * PICTURE_CELL_BYTES + PICTURE_END_BYTES];
    picture_line(&THREE, style, line, text);
    ck_assert_str_eq(text, want);
}

START_TEST(two_rows_are_a_line)
{
    ck_assert_int_eq(picture_lines(&THREE), 2);
    expect_line(PICTURE_BLOCKS, 0, "█▀ ");
    expect_line(PICTURE_BLOCKS, 1, "▀ ▀"); /* there is no fourth row: paper */
    expect_line(PICTURE_ASCII, 0, "@=:");
    expect_line(PICTURE_ASCII, 1, ": =");
}
END_TEST

START_TEST(greys_from_black_to_white)
{
    char want[256], *to = want;
    to += sprintf(to, GREY, 255, 255);
    to += sprintf(to, GREY, 255, 232);
    to += sprintf(to, GREY, 232, 232 + 127 * 23 / 255);
    strcpy(to, "\033[0m");
    expect_line(PICTURE_GREYS, 0, want);
}
END_TEST

/* A run of one colour names it once. No line is longer than its room. */
START_TEST(lines_fit)
{
    uint8_t busy[2][28];
    char text[28 * PICTURE_CELL_BYTES + PICTURE_END_BYTES];
    for (int x = 0; x < 28; x++) {
        busy[0][x] = x % 2 == 0 ? 255 : 254;
        busy[1][x] = x % 2 == 0 ? 255 : 0;
    }
    picture_line(&(picture){busy[0], 28, 2}, PICTURE_GREYS, 0, text);
    ck_assert_uint_eq(strlen(text) + 1, sizeof text);
    memset(busy, 9, sizeof busy);
    picture_line(&(picture){busy[0], 28, 2}, PICTURE_GREYS, 0, text);
    ck_assert_uint_eq(strlen(text), 20 + 28 * strlen("▀") + 4);
}
END_TEST

START_TEST(the_locale_says_whether_there_are_blocks)
{
    setenv("LC_ALL", "C", 1);
    setenv("LANG", "de_DE.UTF-8", 1);
    setenv("CLICOLOR_FORCE", "1", 1);
    unsetenv("NO_COLOR");
    ck_assert_int_eq(picture_style_of(STDOUT_FILENO), PICTURE_ASCII);
    setenv("LC_ALL", "", 1); /* as if it were not set */
    unsetenv("LC_CTYPE");
    ck_assert_int_eq(picture_style_of(STDOUT_FILENO), PICTURE_GREYS);
    setenv("NO_COLOR", "1", 1);
    ck_assert_int_eq(picture_style_of(STDOUT_FILENO), PICTURE_BLOCKS);
    setenv("LC_CTYPE", "C.utf8", 1);
    setenv("LANG", "C", 1);
    ck_assert_int_eq(picture_style_of(STDOUT_FILENO), PICTURE_BLOCKS);
    unsetenv("LC_CTYPE");
    ck_assert_int_eq(picture_style_of(STDOUT_FILENO), PICTURE_ASCII);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("picture");
    TCase *pictures = suite_case(suite, "pictures", 10);
    tcase_add_test(pictures, two_rows_are_a_line);
    tcase_add_test(pictures, greys_from_black_to_white);
    tcase_add_test(pictures, lines_fit);
    tcase_add_test(pictures, the_locale_says_whether_there_are_blocks);
    return suite_run(suite);
}
