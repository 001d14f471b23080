/* Lists and numbers of a flag, a command as a shell takes it, and programs by name. */
#include "base/host.h"
#include "base/text.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Each entry in brackets. */
static const char *const LISTS[][2] = {
    {"", ""},
    {"one", "[one]"},
    {"0,3", "[0][3]"},
    {" SIGTERM , SIGINT ", "[SIGTERM][SIGINT]"},
    {"a b,c", "[a b][c]"},
    {"0,,3", "[0][][3]"},
    {",0", "[][0]"},
    {"0,", "[0]"},
    {",", "[]"},
    {"  ", "[]"},
};

START_TEST(a_list_has_these_entries)
{
    char seen[80] = "";
    size_t length;
    for (const char *at = LISTS[_i][0], *word; (word = comma_list_next(&at, &length)) != NULL;)
        snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "[%.*s]", (int)length, word);
    ck_assert_str_eq(seen, LISTS[_i][1]);
}
END_TEST

static const struct {
    const char *text;
    int value; /* -1: no number from 2 to 1024 */
} NUMBERS[] = {
    {"2", 2}, {"1024", 1024}, {"0007", 7}, {"1", -1},  {"1025", -1}, {"99999999999999999999", -1},
    {"", -1}, {" 3", -1},     {"3 ", -1},  {"+3", -1}, {"-3", -1},   {"3x", -1},
};

START_TEST(a_number_is_all_of_a_text)
{
    int value = -1;
    bool found = number_parse(NUMBERS[_i].text, 2, 1024, &value);
    ck_assert_int_eq(found, NUMBERS[_i].value >= 0);
    ck_assert_int_eq(value, NUMBERS[_i].value);
}
END_TEST

START_TEST(numbers_are_read_one_after_the_other)
{
    const char *at = "12:3";
    int value = 0;
    ck_assert(number_next(&at, 0, 20, &value));
    ck_assert_int_eq(value, 12);
    ck_assert(!number_next(&at, 0, 20, &value));
    ck_assert_str_eq(at++, ":3");
    ck_assert(number_next(&at, 0, 20, &value));
    ck_assert_int_eq(value, 3);
    ck_assert_str_eq(at, "");
}
END_TEST

static const struct {
    const char *words[4], *line;
} COMMANDS[] = {
    {{NULL}, ""},
    {{"mnist_ddp", "--lr=0.1", NULL}, "mnist_ddp --lr=0.1"},
    {{"a b", "", "$HOME", NULL}, "'a b' '' '$HOME'"},
    {{"it's", "'", "#1", NULL}, "'it'\\''s' ''\\''' '#1'"},
};
enum { N_COMMANDS = sizeof COMMANDS / sizeof COMMANDS[0] };

/* The words as they are; and a shell reads them back as they were. */
START_TEST(a_shell_reads_the_words_back)
{
    char *words[4] = {NULL}, command[200], got[100] = "", want[100] = "";
    for (int i = 0; COMMANDS[_i].words[i] != NULL; i++) {
        words[i] = strdup(COMMANDS[_i].words[i]);
        snprintf(want + strlen(want), sizeof want - strlen(want), "%s|", words[i]);
    }
    char *line = shell_words_line(words);
    ck_assert_str_eq(line, COMMANDS[_i].line);
    snprintf(command, sizeof command, "for w in %s; do printf '%%s|' \"$w\"; done", line);
    FILE *shell = popen(command, "r");
    ck_assert_ptr_nonnull(shell);
    got[fread(got, 1, sizeof got - 1, shell)] = '\0';
    ck_assert_int_eq(pclose(shell), 0);
    ck_assert_str_eq(got, want);
    free(line);
    for (int i = 0; i < 4; i++)
        free(words[i]);
}
END_TEST

static void make_file(const char *path, mode_t mode)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fclose(file);
    ck_assert_int_eq(chmod(path, mode), 0);
}

START_TEST(a_program_is_found_as_execvp_finds_it)
{
    char folder[] = "/tmp/test_words.XXXXXX", path[FILE_PATH_BYTES];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(mkdir("one", 0777), 0);
    ck_assert_int_eq(mkdir("two", 0777), 0);
    ck_assert_int_eq(mkdir("one/tool", 0777), 0); /* a folder is no program, */
    make_file("two/tool", 0755);
    make_file("one/text", 0644); /* nor is a file that may not be executed */
    make_file("here", 0755);
    setenv("PATH", "/nonexistent:one:two", 1);
    ck_assert(executable_find("tool", path));
    ck_assert_str_eq(path, "two/tool");
    ck_assert(!executable_find("text", path));
    ck_assert(!executable_find("here", path));
    ck_assert(executable_find("./here", path));
    ck_assert_str_eq(path, "./here");
    ck_assert(!executable_find("one/tool", path));
    setenv("PATH", "one:", 1);
    ck_assert(executable_find("here", path));
    ck_assert_str_eq(path, "./here");
    unsetenv("PATH");
    ck_assert(executable_find("sh", path));
    ck_assert_int_eq(path[0], '/');
    ck_assert_int_eq(unlink("two/tool") + unlink("one/text") + unlink("here"), 0);
    ck_assert_int_eq(rmdir("one/tool") + rmdir("one") + rmdir("two") + rmdir(folder), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("words");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_loop_test(core, a_list_has_these_entries, 0, sizeof LISTS / sizeof LISTS[0]);
    tcase_add_loop_test(core, a_number_is_all_of_a_text, 0, sizeof NUMBERS / sizeof NUMBERS[0]);
    tcase_add_test(core, numbers_are_read_one_after_the_other);
    tcase_add_loop_test(core, a_shell_reads_the_words_back, 0, N_COMMANDS);
    tcase_add_test(core, a_program_is_found_as_execvp_finds_it);
    return suite_run(suite);
}
