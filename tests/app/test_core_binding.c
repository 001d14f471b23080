/* Which cores a rank takes, and when it takes none. */
#include "app/common/core_binding.h"
#include "base/clock.h"
#include "dist/net/socket.h"
#include "kernels/ops.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"
#include "tests/support/port.h"

#include <jansson.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static const device_ops host_ops = {.name = "reference"};

static void bind_rank(const char *flag, int local_rank, int ranks, int threads, core_binding *out)
{
    options opts;
    char word[32];
    snprintf(word, sizeof word, "%s", flag);
    char *argv[] = {"mnist_ddp", "train", word};
    test_folder_require(options_parse(3, argv, &opts)); /* main() calls it too */
    cores_peers peers = {.index = local_rank, .count = ranks};
    device dev = {.ops = &host_ops, .threads = threads};
    core_binding_open(&opts, &peers, &dev, out);
    options_free(&opts);
}

/* Of two ranks in this process, which is bound to the cores of both afterwards. */
static void bind_two(core_binding out[2])
{
    cores all;
    cores_list(cores_count(), &all);
    for (int rank = 0; rank < 2; rank++) {
        bind_rank("--bind-to=core", rank, 2, 1, &out[rank]);
        cores_bind_process(&all);
    }
}

/* Whether another job has claimed a core. */
static bool a_core_is_claimed(void)
{
    cores all;
    char name[64];
    cores_list(cores_count(), &all);
    for (int i = 0; i < all.n; i++) {
        int fd = -1;
        snprintf(name, sizeof name, "mnist_ddp-core-%d", all.ids[i]);
        if (socket_listen_local(name, &fd) != STATUS_OK)
            return true;
        close(fd);
    }
    return false;
}

/* What two bound ranks lack here; NULL: nothing. */
static const char *find_missing(void)
{
    static char note[2 * sizeof((core_binding *)0)->note];
    core_binding both[2];
    if (cores_count() < 2)
        return "two cores";
    bind_two(both);
    snprintf(note, sizeof note, "%s%s", both[0].note, both[1].note);
    core_binding_close(&both[0]);
    core_binding_close(&both[1]);
    bool is_wrong = strstr(note, "taken") != NULL && !a_core_is_claimed();
    return note[0] != '\0' && !is_wrong ? note : NULL;
}

START_TEST(each_rank_has_its_own_cores)
{
    core_binding both[2];
    bind_two(both);
    ck_assert_int_ge(core_binding_core(&both[0]), 0);
    ck_assert_int_ge(core_binding_core(&both[1]), 0);
    for (int i = 0; i < both[0].share.n; i++)
        for (int k = 0; k < both[1].share.n; k++)
            ck_assert_int_ne(both[0].share.ids[i], both[1].share.ids[k]);
    core_binding_close(&both[0]);
    core_binding_close(&both[1]);
}
END_TEST

START_TEST(a_bound_thread_has_one_core)
{
    core_binding both[2];
    bind_two(both);
    core_binding_close(&both[0]);
    bind_rank("--bind-to=core", 0, 2, 1, &both[0]);
    ck_assert_int_eq(cores_count(), 1);
    ck_assert_int_eq(sched_getcpu(), core_binding_core(&both[0]));
    cores_bind_process(&both[0].before);
    core_binding_close(&both[0]);
    core_binding_close(&both[1]);
}
END_TEST

START_TEST(taken_cores_are_left_alone)
{
    core_binding both[2], second;
    cores two;
    cores_list(2, &two);
    two.n = 2; /* a share has one */
    cores_bind_process(&two);
    int before = cores_count(), core;
    bind_two(both);
    core = core_binding_core(&both[1]);
    bind_rank("--bind-to=core", 1, 2, 1, &second);
    ck_assert_int_eq(core_binding_core(&second), -1);
    ASSERT_FACTS(second.note, "core", "taken");
    ck_assert_int_eq(cores_count(), before);
    core_binding_close(&second);
    core_binding_close(&both[1]);
    bind_rank("--bind-to=core", 1, 2, 1, &second); /* and can be had once they are free */
    ck_assert_str_eq(second.note, "");
    ck_assert_int_eq(core_binding_core(&second), core);
    core_binding_close(&second);
    core_binding_close(&both[0]);
}
END_TEST

/* If the share has any that no other job has. */
START_TEST(another_core_is_taken_instead)
{
    core_binding first[2], second;
    bind_two(first);
    bind_rank("--bind-to=core", 1, 2, 1, &second);
    ck_assert_str_eq(second.note, "");
    ck_assert_int_ge(core_binding_core(&second), 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_ne(core_binding_core(&second), core_binding_core(&first[i]));
    core_binding_close(&second);
    core_binding_close(&first[0]);
    core_binding_close(&first[1]);
}
END_TEST

static const struct {
    const char *flag;
    int ranks, threads; /* threads 0: as many as there are cores */
    const char *note;
} UNBOUND[] = {
    {"--bind-to=none", 2, 1, "--bind-to=none"},
    {"--bind-to=core", 1, 1, "one thread alone"},
    {"--bind-to=core", 2, 0, "ranks here: 2"},
    {"--bind-to=core", CORES_MAX + 1, 1, "ranks here: 1025"},
};

START_TEST(who_is_not_bound_says_why)
{
    core_binding b;
    int before = cores_count(), threads = UNBOUND[_i].threads;
    bind_rank(UNBOUND[_i].flag, 0, UNBOUND[_i].ranks, threads > 0 ? threads : before, &b);
    ck_assert_int_eq(core_binding_core(&b), -1);
    ASSERT_FACTS(b.note, UNBOUND[_i].note);
    ck_assert_int_eq(cores_count(), before);
    core_binding_look(&b);
    core_binding_close(&b);
}
END_TEST

/* taskset, or a cpuset: what it leaves is all there is. */
START_TEST(the_users_mask_counts)
{
    core_binding b;
    cores all;
    cores_list(cores_count(), &all);
    ck_assert(cores_bind(pthread_self(), all.ids, 1));
    bind_rank("--bind-to=core", 0, 2, 1, &b);
    ck_assert_int_eq(core_binding_core(&b), -1);
    ASSERT_FACTS(b.note, "ranks here: 2", "cores: 1");
    ck_assert_int_eq(cores_count(), 1);
}
END_TEST

/* Somebody else computes on the core, who does not know of claims. */
START_TEST(a_busy_core_is_given_up)
{
    core_binding both[2];
    int before = cores_count();
    bind_two(both);
    core_binding_close(&both[0]);
    bind_rank("--bind-to=core", 0, 2, 1, &both[0]);
    pid_t other = fork(); /* it has the same core */
    if (other == 0)
        for (;;)
            ;
    int64_t deadline_ns = clock_deadline_ns(5000);
    while (core_binding_core(&both[0]) >= 0 && !clock_passed(deadline_ns))
        core_binding_look(&both[0]);
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    ck_assert_int_eq(core_binding_core(&both[0]), -1);
    ASSERT_FACTS(both[0].note, "core", "busy");
    ck_assert_int_eq(cores_count(), before);
    core_binding_close(&both[0]);
    core_binding_close(&both[1]);
}
END_TEST

static json_t *result_of(const char *bind_to)
{
    json_error_t error;
    program p = program_mnist("train", "--nproc-per-node=2", "--threads=1", "--device=reference",
                              "--model=mlp", "--limit=64", "--epochs=1", "--json", "--quiet",
                              "--no-save-model", "--run-dir=run", bind_to, NULL);
    ASSERT_EXIT(p, 0);
    json_t *object = json_loads(p.out, 0, &error);
    ck_assert_msg(object != NULL, "%s in: %s", error.text, p.out);
    program_close(&p);
    return object;
}

/* The result says how many ranks were bound, and if rank 0 was not, why. */
START_TEST(the_result_tells)
{
    json_t *result = result_of(_i == 0 ? "--bind-to=none" : "--bind-to=core");
    json_int_t bound = json_integer_value(json_object_get(result, "bound_ranks"));
    const char *note = json_string_value(json_object_get(result, "bind_note"));
    ck_assert_ptr_nonnull(note);
    if (_i == 0)
        ck_assert_str_eq(note, "--bind-to=none");
    ck_assert_int_ge(bound, _i == 0 || note[0] != '\0' ? 0 : 1);
    ck_assert_int_le(bound, _i == 0 ? 0 : note[0] != '\0' ? 1 : 2);
    json_decref(result);
}
END_TEST

/* More ranks than cores are worth a warning, and one alone. */
START_TEST(ranks_without_cores_are_warned_of_once)
{
    static const char *const more[][2] = {{"--nproc-per-node=2", NULL},
                                          {"--nproc-per-node=1", NULL},
                                          {"--nproc-per-node=2", "--quiet"}};
    cores first;
    cores_list(1, &first);
    ck_assert(cores_bind(pthread_self(), first.ids, 1));
    program p = program_mnist("train", "--threads=1", "--device=reference", "--model=mlp",
                              "--limit=64", "--dry-run", more[_i][0], more[_i][1], NULL);
    ASSERT_EXIT(p, 0);
    ck_assert_int_eq(facts_count(p.err, "they will wait for each other"), _i == 0);
    if (_i == 0)
        ASSERT_FACTS(p.err, "warning", "rank 0", "cores: 1", "2 ranks");
    program_close(&p);
}
END_TEST

/* Two launchers of one job: their ranks share the cores out as those of one would. */
START_TEST(launchers_share_the_cores)
{
    int port = port_find_free(), want = cores_count() / 2 > 1 ? cores_count() / 2 : 1;
    program nodes[2];
    test_folder_remove("run");
    for (int i = 0; i < 2; i++)
        nodes[i] = program_start_with(
            NULL, WORDS("train", "--model=mlp", "--limit=64", "--epochs=1", "--json", "--quiet",
                        "--device=reference", "--no-save-model", "--run-dir=run", "--nnodes=2",
                        program_flag("--node-rank=", i), "--nproc-per-node=1",
                        "--master-addr=127.0.0.1", program_flag("--master-port=", port)));
    for (int i = 0; i < 2; i++) {
        program_wait(&nodes[i], RUN_S);
        ASSERT_EXIT(nodes[i], 0);
    }
    json_t *result = json_loads(nodes[0].out, 0, NULL);
    ck_assert_ptr_nonnull(result);
    ck_assert_int_eq(json_integer_value(json_object_get(result, "threads")), want);
    json_decref(result);
    program_close(&nodes[0]);
    program_close(&nodes[1]);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("core_binding");
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_loop_test(core, who_is_not_bound_says_why, 0, sizeof UNBOUND / sizeof UNBOUND[0]);
    tcase_add_test(core, the_users_mask_counts);
    tcase_add_loop_test(core, the_result_tells, 0, 2);
    tcase_add_loop_test(core, ranks_without_cores_are_warned_of_once, 0, 3);
    tcase_add_test(core, launchers_share_the_cores);
    const char *missing = find_missing();
    suite_add(core, each_rank_has_its_own_cores, 0, missing);
    suite_add(core, a_bound_thread_has_one_core, 0, missing);
    suite_add(core, taken_cores_are_left_alone, 0, missing);
    suite_add(core, a_busy_core_is_given_up, 0, missing);
    suite_add(core, another_core_is_taken_instead, 0, cores_count() < 4 ? "four cores" : missing);
    return test_folder_close(suite_run(suite));
}
