/* mnist_ddp demo: what it shows of a launch, against what is known of it here. */
#include "tests/app/support/demo_run.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"
#include "tests/support/program.h"

#include <stdio.h>
#include <stdlib.h>

/* 3 nodes x 8 ranks: the notes' quiz. */
START_TEST(three_nodes_of_eight_are_24_ranks)
{
    enum { NODES = 3, NPROC = 8 };
    json_t *document = demo_run("world-size");
    ck_assert_double_eq(demo_run_fact(document, "ranks"), NODES * NPROC);
    for (int node = 0; node < NODES; node++) {
        char ranks[32];
        snprintf(ranks, sizeof ranks, "%d to %d", node * NPROC, (node + 1) * NPROC - 1);
        ck_assert_int_eq(json_integer_value(demo_run_cell(document, 1, node, 0)), node);
        ck_assert_str_eq(json_string_value(demo_run_cell(document, 1, node, 1)), "0 to 7");
        ck_assert_str_eq(json_string_value(demo_run_cell(document, 1, node, 2)), ranks);
        ck_assert_int_eq(json_integer_value(demo_run_cell(document, 1, node, 3)), NODES * NPROC);
    }
    ck_assert_double_eq(demo_run_fact(document, "refused_with"), 64);
    char *said = demo_run_text(document, -1);
    ASSERT_FACTS(said, "--node-rank=5", "3 machines", "from 0 to 2");
    free(said);
    json_decref(document);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("demo_launch");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_test(core, three_nodes_of_eight_are_24_ranks);
    return test_folder_close(suite_run(suite));
}
