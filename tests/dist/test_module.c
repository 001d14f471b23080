/* Finding and refusing backend modules. */
#include "dist/module.h"
#include "tests/support/suite.h"

#include <stdlib.h>
#include <string.h>

static const process_group_ops *ops;

START_TEST(a_missing_module_says_where_it_was_looked_for)
{
    ck_assert_int_eq(module_open("nonesuch", &ops), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "/mnist_ddp_nonesuch.so and "));
    ck_assert_ptr_nonnull(strstr(status_message(), "../lib/mnist_ddp/mnist_ddp_nonesuch.so"));
    ck_assert_ptr_nonnull(strstr(status_message(), "MNIST_DDP_NONESUCH_MODULE"));
    ck_assert_ptr_nonnull(strstr(status_message(), "shm"));
}
END_TEST

START_TEST(the_variable_is_obeyed)
{
    setenv("MNIST_DDP_GLOO_MODULE", "/nonexistent/module.so", 1);
    ck_assert_int_eq(module_open("gloo", &ops), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "/nonexistent/module.so"));
    /* A file that is no shared object, and a shared object that is no module. */
    setenv("MNIST_DDP_GLOO_MODULE", "/proc/self/status", 1);
    ck_assert_int_eq(module_open("gloo", &ops), STATUS_IO);
    setenv("MNIST_DDP_GLOO_MODULE", "/proc/self/exe", 1);
    ck_assert_int_ne(module_open("gloo", &ops), STATUS_OK);
    ck_assert_ptr_null(ops);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("module");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_test(core, a_missing_module_says_where_it_was_looked_for);
    tcase_add_test(core, the_variable_is_obeyed);
    return suite_run(suite);
}
