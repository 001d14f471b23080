/* Cores are those the process may use, shares cut them up, and threads keep to what they are bound
 * to.
 */
#include "base/thread.h"

#include "tests/support/suite.h"

#include <sched.h>
#include <string.h>

static cores all_cores(void)
{
    cores all;
    cores_list(cores_count(), &all);
    ck_assert_int_eq(all.n, cores_count());
    return all;
}

static bool is_allowed(int id)
{
    cpu_set_t set;
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    return CPU_ISSET((size_t)id, &set);
}

START_TEST(a_list_has_allowed_cores_once)
{
    int most = cores_count();
    for (int need = 1; need <= most; need++) {
        cores list;
        bool seen[CORES_MAX] = {false};
        cores_list(need, &list);
        ck_assert_int_ge(list.n, need);
        ck_assert_int_le(list.n, most);
        for (int i = 0; i < list.n; i++) {
            ck_assert(is_allowed(list.ids[i]));
            ck_assert(!seen[list.ids[i]]);
            seen[list.ids[i]] = true;
        }
    }
}
END_TEST

START_TEST(more_than_allowed_is_no_list)
{
    cores list;
    cores_list(cores_count() + 1, &list);
    ck_assert_int_eq(list.n, 0);
}
END_TEST

/* Ten cores made up, cut in any number of shares. */
START_TEST(shares_cover_all_in_order)
{
    cores all = {.n = 10}, share;
    int next = 0;
    for (int i = 0; i < all.n; i++)
        all.ids[i] = (int16_t)(i * 3);
    for (int part = 0; part < _i; part++) {
        cores_share(&all, part, _i, &share);
        ck_assert_int_ge(share.n, all.n / _i);
        ck_assert_int_le(share.n, (all.n + _i - 1) / _i);
        for (int i = 0; i < share.n; i++)
            ck_assert_int_eq(share.ids[i], all.ids[next++]);
    }
    ck_assert_int_eq(next, all.n);
}
END_TEST

static void *count_own(void *out)
{
    *(int *)out = cores_count();
    return NULL;
}

START_TEST(a_bound_thread_and_its_threads_stay_there)
{
    cores all = all_cores();
    int16_t last = all.ids[all.n - 1];
    pthread_t thread;
    int seen = 0;
    ck_assert(cores_bind(pthread_self(), &last, 1));
    ck_assert_int_eq(cores_count(), 1);
    ck_assert(is_allowed(last));
    ck_assert_int_eq(sched_getcpu(), last);
    ck_assert_int_eq(pthread_create(&thread, NULL, count_own, &seen), 0);
    pthread_join(thread, NULL);
    ck_assert_int_eq(seen, 1);
    cores_bind_process(&all);
    ck_assert_int_eq(cores_count(), all.n);
}
END_TEST

/* A list is of what is left to the process, not of what the machine has. */
START_TEST(a_bound_process_lists_what_is_left)
{
    cores all = all_cores(), left;
    ck_assert(cores_bind(pthread_self(), all.ids, 1));
    cores_list(1, &left);
    ck_assert_int_eq(left.n, 1);
    ck_assert_int_eq(left.ids[0], all.ids[0]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cores");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_test(core, a_list_has_allowed_cores_once);
    tcase_add_test(core, more_than_allowed_is_no_list);
    tcase_add_loop_test(core, shares_cover_all_in_order, 1, 11);
    tcase_add_test(core, a_bound_thread_and_its_threads_stay_there);
    tcase_add_test(core, a_bound_process_lists_what_is_left);
    return suite_run(suite);
}
