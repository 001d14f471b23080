/* Names and lists as Slurm and Kubernetes write them. */
#include "app/launch/outer_launcher.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

START_TEST(lists_of_slurm_are_read)
{
    static const struct {
        const char *list, *first; /* NULL: no list */
    } hosts[] = {
        {"n1", "n1"},
        {"n1,n2", "n1"},
        {"n[1-3,7]", "n1"},
        {"n[08-11]", "n08"},
        {"n[5]", "n5"},
        {"a[2,4]b,c", "a2b"},
        {"[3-4]", "3"},
        {"r[1-2]n[3-4]", "r1n3"},
        {"gpu-a.b[0-9]", "gpu-a.b0"},
        {"", NULL},
        {",n1", NULL},
        {"n[1-3", NULL},
        {"n[]", NULL},
        {"n[x-y]", NULL},
    };
    static const struct {
        const char *list;
        int node, tasks, all; /* 0: no list, or no such node */
    } tasks[] = {{"4", 0, 4, 4},          {"3(x2),1", 0, 3, 7},
                 {"3(x2),1", 1, 3, 7},    {"3(x2),1", 2, 1, 7},
                 {"1,2,3(x4)", 5, 3, 15}, {"3(x2),1", 3, 0, 0},
                 {"", 0, 0, 0},           {"3(x2", 0, 0, 0},
                 {"3,", 0, 0, 0},         {"3x2", 0, 0, 0},
                 {"-1", 0, 0, 0},         {"0", 0, 0, 0},
                 {"9999999999", 0, 0, 0}, {"1048576(x1048576)", 0, 0, 0}};
    char first[8 + 1];
    for (int i = 0; i < COUNT(hosts); i++) {
        ck_assert_int_eq(slurm_list_first_host(hosts[i].list, first, sizeof first),
                         hosts[i].first != NULL);
        if (hosts[i].first != NULL)
            ck_assert_str_eq(first, hosts[i].first);
    }
    ck_assert(!slurm_list_first_host("too-long-a-name", first, sizeof first));
    for (int i = 0; i < COUNT(tasks); i++) {
        int here = 0, all = 0;
        ck_assert_msg(slurm_list_tasks(tasks[i].list, tasks[i].node, &here, &all) ==
                          (tasks[i].tasks > 0),
                      "%s", tasks[i].list);
        ck_assert_int_eq(here, tasks[i].tasks);
        ck_assert_int_eq(all, tasks[i].all);
    }
}
END_TEST

START_TEST(pod_0_is_named)
{
    char name[80];
    ck_assert_int_eq(pod_name_first("mnist-2.svc.default.svc.cluster.local", 2, name, sizeof name),
                     STATUS_OK);
    ck_assert_str_eq(name, "mnist-0.svc.default.svc.cluster.local");
    ck_assert_int_eq(pod_name_first("mnist-12.svc", 12, name, sizeof name), STATUS_OK);
    ck_assert_str_eq(name, "mnist-0.svc");
    ck_assert_int_eq(pod_name_first("mnist-12.svc", 2, name, sizeof name), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "JOB_COMPLETION_INDEX=2", "mnist-12.svc", "--master-addr");
    ck_assert_int_eq(pod_name_first("mnist-2", 2, name, sizeof name), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "mnist-2", "subdomain", "--master-addr");
    ck_assert_int_eq(pod_name_first("-2.svc", 2, name, sizeof name), STATUS_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cluster_names");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_test(core, lists_of_slurm_are_read);
    tcase_add_test(core, pod_0_is_named);
    return suite_run(suite);
}
