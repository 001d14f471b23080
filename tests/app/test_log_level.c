/* A user's message names no place in the sources; a debug level does. */
#include "tests/support/facts.h"
#include "tests/support/program.h"
#include "tests/support/suite.h"

#include <regex.h>
#include <stdlib.h>

/* Commands that fail each in its own room: options, a file, the launcher, a worker, the store. */
static const struct {
    const char *flags[5];
    int exit_code;
} FAILURES[] = {
    {{"--epochs=x"}, 64},
    {{"--config=/nonexistent.yaml"}, 64},
    {{"eval", "--checkpoint=/nonexistent"}, 74},
    {{"--data-dir=/nonexistent"}, 65},
    {{"--data-dir=/nonexistent", "--nproc-per-node=2"}, 65},
    {{"--inject=nonsense"}, 64},
    {{"bench", "all_reduce", "--sizes=x"}, 64},
    {{"sampler", "--world-size=0"}, 64},
    {{"--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", "--join-timeout=1"}, 69},
    {{"run", "--no-python", "/nonexistent"}, 64},
};
enum { N_FAILURES = sizeof FAILURES / sizeof FAILURES[0] };

static bool names_a_source(const char *text)
{
    regex_t pattern;
    ck_assert_int_eq(regcomp(&pattern, "[a-z_]\\.(c|h|cc|cu|cuh):[0-9]+", REG_EXTENDED), 0);
    bool found = regexec(&pattern, text, 0, NULL, 0) == 0;
    regfree(&pattern);
    return found;
}

START_TEST(only_debug_names_the_source)
{
    const char *const *f = FAILURES[_i].flags;
    unsetenv("TORCH_DISTRIBUTED_DEBUG");
    program plain = program_mnist(f[0], f[1], f[2], f[3], f[4], NULL);
    setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL", 1);
    program debug = program_mnist(f[0], f[1], f[2], f[3], f[4], NULL);
    ck_assert_msg(plain.exit_code == FAILURES[_i].exit_code, "exit code %d: %s", plain.exit_code,
                  plain.err);
    ck_assert_int_eq(debug.exit_code, FAILURES[_i].exit_code);
    ck_assert_msg(!names_a_source(plain.err) && !names_a_source(plain.out), "%s%s", plain.err,
                  plain.out);
    ck_assert_msg(names_a_source(debug.err), "%s", debug.err);
    program_close(&plain);
    program_close(&debug);
}
END_TEST

/* --debug counts before the variable, in both directions. */
START_TEST(the_flag_counts)
{
    static const char *const flags[] = {"--debug=off", "--debug=info"};
    static const char *const variables[] = {"DETAIL", "OFF"};
    setenv("TORCH_DISTRIBUTED_DEBUG", variables[_i], 1);
    program p =
        program_mnist("train", "--data-dir=/nonexistent", "--no-save-model", flags[_i], NULL);
    ck_assert_msg(p.exit_code != 0, "%s", p.err);
    ck_assert_msg(names_a_source(p.err) == (_i == 1), "%s", p.err);
    program_close(&p);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log_level");
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_loop_test(core, only_debug_names_the_source, 0, N_FAILURES);
    tcase_add_loop_test(core, the_flag_counts, 0, 2);
    return suite_run(suite);
}
