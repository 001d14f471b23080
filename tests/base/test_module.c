/* Finding and refusing modules. */
#include "base/module.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const module *found;

START_TEST(a_missing_module_says_where_it_was_looked_for)
{
    char beside[4096] = ""; /* this program */
    ck_assert_int_gt(readlink("/proc/self/exe", beside, sizeof beside - 64), 0);
    strcpy(strrchr(beside, '/'), "/mnist_ddp_nonesuch.so");
    ck_assert_int_eq(module_open("nonesuch", &found), STATUS_NO_MODULE);
    ASSERT_FACTS(status_text(), beside);
    ASSERT_FACTS(status_text(), "../lib/mnist_ddp/mnist_ddp_nonesuch.so");
    ASSERT_FACTS(status_text(), "MNIST_DDP_NONESUCH_MODULE");
    ck_assert(!module_exists("nonesuch"));
    ck_assert(!module_is_named("nonesuch"));
}
END_TEST

START_TEST(the_variable_is_obeyed)
{
    ck_assert(!module_is_named("gloo"));
    setenv("MNIST_DDP_GLOO_MODULE", "/nonexistent/module.so", 1);
    ck_assert(module_is_named("gloo"));
    ck_assert_int_eq(module_open("gloo", &found), STATUS_NO_MODULE);
    ASSERT_FACTS(status_text(), "MNIST_DDP_GLOO_MODULE", "/nonexistent/module.so");
    /* A file that is no shared object, and a shared object that is no module. */
    setenv("MNIST_DDP_GLOO_MODULE", "/proc/self/status", 1);
    ck_assert_int_eq(module_open("gloo", &found), STATUS_NO_MODULE);
    setenv("MNIST_DDP_GLOO_MODULE", "/proc/self/exe", 1);
    ck_assert_int_ne(module_open("gloo", &found), STATUS_OK);
    ck_assert_ptr_null(found);
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
