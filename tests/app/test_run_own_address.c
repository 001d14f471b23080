/* The mistake of notes that are copied from machine to machine: a node that is not node 0 is given
 * its own address as node 0's. */
#include "app/common/machine.h"
#include "tests/app/support/run_command.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/port.h"

#include <signal.h>

static char own[64];

/* This machine's first IPv4 address; false where it has none but loopback. */
static bool find_own_address(void)
{
    FILE *pipe = popen("hostname -I", "r");
    int n = pipe != NULL ? fscanf(pipe, "%63s", own) : 0;
    if (pipe != NULL)
        pclose(pipe);
    return n == 1 && strchr(own, ':') == NULL;
}

START_TEST(an_own_address_is_not_node_0s)
{
    char flags[512], where[96];
    int port = port_find_free();
    snprintf(flags, sizeof flags, "--nnodes=2 --node-rank=1 --master-addr=%s --master-port=%d", own,
             port);
    snprintf(where, sizeof where, "%s:%d", own, port);
    program p = run_command_start(flags, "true");
    program_await(&p, where, "node 1", "node 0", "address"); /* long before --join-timeout */
    kill(p.pid, SIGTERM);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 143);
    program_close(&p);
}
END_TEST

START_TEST(whose_addresses_these_are_is_known)
{
    ck_assert(local_network_owns(own));
    ck_assert(local_network_owns("127.0.0.1") && local_network_owns("127.8.9.10"));
    ck_assert(!local_network_owns("192.0.2.1")); /* in the network that is only for documents */
}
END_TEST

int main(void)
{
    if (!find_own_address()) {
        printf("SKIP: this machine has no address but loopback\n");
        return TEST_SKIPPED;
    }
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("run_own_address");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_test(core, an_own_address_is_not_node_0s);
    tcase_add_test(core, whose_addresses_these_are_is_known);
    return test_folder_close(suite_run(suite));
}
