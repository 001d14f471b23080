/* An elastic job with two endpoints of c10d, each served by another node of this machine: the host
 * of the first one is killed. */
#include "base/clock.h"
#include "tests/app/support/nodes.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/port.h"

#include <signal.h>

#define TIMES "--rdzv-conf=last_call_timeout=0.1,keep_alive_interval=1,join_timeout=20 "

/* A rank says its place, and runs until it is told. */
#define RUN \
    "echo round $MNIST_DDP_ROUND rank $RANK of $WORLD_SIZE; " \
    "touch up.$MNIST_DDP_ROUND.$RANK; while ! test -e go; do sleep .02; done"

static int ports[2];
static char endpoints[80];

static void choose_ports(void)
{
    test_folder_clean();
    ports[0] = ports[1] = port_find_free();
    while (ports[1] == ports[0])
        ports[1] = port_find_free();
    snprintf(endpoints, sizeof endpoints, "localhost:%d,localhost:%d", ports[0], ports[1]);
}

static void await_ranks(int round, int n)
{
    char name[32];
    for (int rank = 0; rank < n; rank++) {
        snprintf(name, sizeof name, "up.%d.%d", round, rank);
        test_folder_await(name);
    }
}

static program start(const char *flags)
{
    return nodes_start_at(endpoints, flags, RUN);
}

static void end(program *p, int n, const int *codes)
{
    nodes_wait(p, n);
    for (int i = 0; i < n; i++)
        ASSERT_EXIT(p[i], codes[i]);
}

/* Two of three go on at the second endpoint. Whoever comes then finds them there, though it serves
 * the first one again. */
START_TEST(the_majority_goes_on_at_the_other_endpoint)
{
    program p[4];
    for (int i = 0; i < 3; i++) {
        p[i] = start(TIMES "--nnodes=1:3 --nproc-per-node=1");
        await_ranks(i + 1, i + 1);
    }
    int64_t start_ns = clock_now_ns();
    kill(p[0].pid, SIGKILL);
    await_ranks(4, 2);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5.0);
    p[3] = start(TIMES "--nnodes=1:3 --nproc-per-node=1");
    port_await_listener(ports[0]);
    await_ranks(5, 3);
    test_folder_write("go", "");
    end(p, 4, (const int[]){137, 0, 0, 0});
    ASSERT_SAYS(p[1].out, "round 4 rank 0 of 2\n");
    ASSERT_SAYS(p[2].out, "round 4 rank 1 of 2\n");
    ASSERT_SAYS(p[3].out, "round 5 rank 2 of 3\n");
    nodes_close(p, 4);
}
END_TEST

/* One of two is no majority: it says for how many it waits, and ends. */
START_TEST(one_of_two_does_not_go_on)
{
    static const char flags[] =
        "--rdzv-conf=last_call_timeout=0.1,keep_alive_interval=1,join_timeout=3 "
        "--nnodes=1:2 --nproc-per-node=1";
    program p[2];
    for (int i = 0; i < 2; i++) {
        p[i] = start(flags);
        await_ranks(i + 1, i + 1);
    }
    kill(p[0].pid, SIGKILL);
    end(p, 2, (const int[]){137, 69});
    ASSERT_FACTS(p[1].err, "error", "--join-timeout", "1 of the 2 nodes of round 2",
                 "more than half");
    ASSERT_SILENT(p[1].out, "round 3");
    nodes_close(p, 2);
}
END_TEST

/* The ranks that live go on after the last step, in their processes. No step is made twice; the
 * line of the one in which rank 0 was killed may be missing. */
START_TEST(a_training_goes_on_after_its_last_step)
{
    char where[128];
    snprintf(where, sizeof where, "--rdzv-endpoint=%s", endpoints);
    const char *flags[] = {"train",
                           "--nnodes=1:3",
                           "--nproc-per-node=1",
                           "--rdzv-backend=c10d",
                           where,
                           "--rdzv-conf=last_call_timeout=5,keep_alive_interval=1,join_timeout=20",
                           "--run-dir=r",
                           "--model=mlp",
                           "--epochs=3",
                           "--save-every=1epochs",
                           "--threads=1",
                           "--batch-size=20",
                           "--inject-delay-ms=20",
                           "--eval-every=0",
                           "--log-interval=1",
                           "--no-quiet",
                           NULL};
    program p[3];
    for (int i = 0; i < 3; i++) {
        p[i] = program_start_with(NULL, flags);
        if (i < 2)
            port_await_listener(ports[i]);
    }
    test_folder_await("r/model.safetensors"); /* epochs follow */
    kill(p[0].pid, SIGKILL);
    end(p, 3, (const int[]){137, 0, 0});
    const char *log = strstr(p[1].out, "go on after") != NULL ? p[1].out : p[2].out;
    ASSERT_FACTS(log, "round 2: 2 ranks go on after", "in the processes that live");
    ck_assert_int_eq(system("grep '\"event\":\"step\"' r/metrics.jsonl | "
                            "sed 's/.*\"step\":\\([0-9]*\\),.*/\\1/' > steps; "
                            "n=$(tail -n 1 steps); sort -nu steps | cmp - steps && "
                            "test $(wc -l < steps) -ge $((n - 1))"),
                     0);
    nodes_close(p, 3);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("run_endpoints");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, choose_ports, NULL);
    tcase_add_test(core, the_majority_goes_on_at_the_other_endpoint);
    tcase_add_test(core, one_of_two_does_not_go_on);
    tcase_add_test(core, a_training_goes_on_after_its_last_step);
    return test_folder_close(suite_run(suite));
}
