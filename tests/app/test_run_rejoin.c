/* A launcher that is stopped while the nodes still join is no part of the job, and may come again.
 * All on this machine. */
#include "base/clock.h"
#include "tests/app/support/run_command.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/port.h"

#include <signal.h>

enum { FLAGS_BYTES = 512 };

/* A node of three: of a static job, or numbered as it comes. */
static program start_one(bool by_arrival, int node, int port)
{
    char all[FLAGS_BYTES];
    if (by_arrival)
        snprintf(all, sizeof all, "--nnodes=3 --rdzv-backend=c10d --rdzv-endpoint=localhost:%d",
                 port);
    else
        snprintf(all, sizeof all,
                 "--nnodes=3 --master-addr=127.0.0.1 --master-port=%d --node-rank=%d", port, node);
    return run_command_start(all, "echo rank $RANK");
}

static const struct {
    bool by_arrival;
    int signal;
} CASES[] = {{false, SIGTERM}, {true, SIGTERM}, {false, SIGKILL}, {true, SIGKILL}};

START_TEST(a_stopped_joiner_may_come_again)
{
    bool by_arrival = CASES[_i].by_arrival, seen[3] = {false};
    int port = port_find_free();
    program p[3];
    p[0] = start_one(by_arrival, 0, port);
    port_await_listener(port);
    program first = start_one(by_arrival, 1, port);
    program_await(&first, "2 of 3", "nodes");
    kill(first.pid, CASES[_i].signal);
    program_wait(&first, RUN_S);
    if (CASES[_i].signal == SIGTERM)
        ASSERT_EXIT(first, 143);
    for (int i = 1; i < 3; i++)
        p[i] = start_one(by_arrival, i, port);
    int64_t start_ns = clock_now_ns();
    for (int i = 0; i < 3; i++) {
        int rank = -1;
        program_wait(&p[i], RUN_S);
        ASSERT_EXIT(p[i], 0);
        ck_assert_int_eq(sscanf(p[i].out, "rank %d", &rank), 1);
        ck_assert(rank >= 0 && rank < 3 && !seen[rank]);
        seen[rank] = true;
        program_close(&p[i]);
    }
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 8.0);
    program_close(&first);
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("run_rejoin");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_loop_test(core, a_stopped_joiner_may_come_again, 0, COUNT(CASES));
    return test_folder_close(suite_run(suite));
}
