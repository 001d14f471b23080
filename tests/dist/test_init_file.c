/* --init-method=file://PATH: ranks find each other by the file, and files that others have left are
 * told from those that count. */
#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "dist/net/socket.h"
#include "dist/rendezvous.h"
#include "tests/support/facts.h"
#include "tests/support/port.h"
#include "tests/support/suite.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RANKS = 5, JOIN_MS = 5000 };

static char folder[] = "/tmp/mnist_ddp-init-file-XXXXXX";
static char path[64];

static void make_folder(void)
{
    log_set_level(LOG_ERROR);
    memset(strstr(folder, "file-") + 5, 'X', 6);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/init", folder);
}

static void remove_folder(void)
{
    unlink(path);
    ck_assert_int_eq(rmdir(folder), 0); /* nothing else is left in it */
}

static void write_text(const char *text)
{
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static rendezvous_place place_of(int rank, int world_size)
{
    rendezvous_place place = {.rank = rank,
                              .world_size = world_size,
                              .local_rank = rank,
                              .local_world_size = world_size,
                              .run_id = "none"};
    snprintf(place.init_file, sizeof place.init_file, "%s", path);
    return place;
}

static status join(int rank, int world_size, int64_t timeout_ms, rendezvous **out)
{
    rendezvous_place place = place_of(rank, world_size);
    return rendezvous_join(&place, timeout_ms, JOIN_MS, out);
}

/* A rank's process: 0 if it has joined and left, and all have the same run id. */
static int run_rank(int rank, int world_size, int64_t start_ms)
{
    rendezvous *r = NULL;
    alarm(20);
    clock_sleep_ms(start_ms);
    status st = join(rank, world_size, JOIN_MS, &r);
    char *id = NULL;
    if (st == STATUS_OK && rank == 0)
        st = store_set(rendezvous_store(r), "id", rendezvous_joined(r)->run_id, 32);
    if (st == STATUS_OK)
        st = store_wait(rendezvous_store(r), "id", JOIN_MS);
    if (st == STATUS_OK)
        st = store_try_get(rendezvous_store(r), "id", &id);
    if (st == STATUS_OK && strcmp(id, rendezvous_joined(r)->run_id) != 0)
        st = FAIL(STATUS_PEER, "run id %s, not %s", rendezvous_joined(r)->run_id, id);
    if (st == STATUS_OK)
        rendezvous_leave(r);
    rendezvous_destroy(r);
    free(id);
    if (st != STATUS_OK)
        fprintf(stderr, "rank %d: %s\n", rank, status_text());
    return (int)st;
}

static pid_t start_rank(int rank, int world_size, int64_t start_ms)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(run_rank(rank, world_size, start_ms));
    ck_assert_int_gt(pid, 0);
    return pid;
}

/* Each of n ranks starts after so many ms; all join. */
static void expect_job(int n, const int64_t *start_ms)
{
    pid_t pids[MAX_RANKS];
    for (int r = 0; r < n; r++)
        pids[r] = start_rank(r, n, start_ms[r]);
    for (int r = 0; r < n; r++) {
        int code;
        ck_assert_int_eq(waitpid(pids[r], &code, 0), pids[r]);
        ck_assert_int_eq(code, 0);
    }
    ck_assert_int_ne(access(path, F_OK), 0); /* it has done its work */
}

START_TEST(ranks_find_each_other)
{
    static const int sizes[] = {2, 3, 5};
    static const int64_t at_once[MAX_RANKS] = {0};
    expect_job(sizes[_i], at_once);
    expect_job(sizes[_i], at_once); /* the path is new again */
}
END_TEST

START_TEST(an_empty_file_is_as_good_as_none)
{
    write_text("");
    expect_job(3, (int64_t[]){300, 0, 500}); /* rank 0 comes after rank 1 */
}
END_TEST

/* A line with the port of nobody, as a killed job leaves it. */
static void write_line(const char *address, int port, uint64_t host)
{
    init_file line;
    init_file_init(&line);
    snprintf(line.address, sizeof line.address, "%s", address);
    line.port = port;
    line.host_number = host;
    ck_assert_int_eq(init_file_publish(path, &line), STATUS_OK);
}

START_TEST(what_a_dead_job_has_left_is_replaced)
{
    write_line("127.0.0.1", port_find_free(), host_number());
    expect_job(2, (int64_t[]){300, 0});
}
END_TEST

/* Its port is another store's by now. */
START_TEST(the_store_of_another_job_is_not_joined)
{
    store_server *other = NULL;
    ck_assert_int_eq(store_server_create("127.0.0.1", 0, &other), STATUS_OK);
    write_line("127.0.0.1", store_server_port(other), host_number());
    expect_job(2, (int64_t[]){300, 0});
    store_server_destroy(other);
}
END_TEST

START_TEST(a_killed_rank_0_leaves_a_file_that_the_next_job_replaces)
{
    pid_t first = start_rank(0, 2, 0);
    int code;
    for (int i = 0; i < 500 && access(path, F_OK) != 0; i++)
        clock_sleep_ms(10);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert_int_eq(kill(first, SIGKILL), 0);
    ck_assert_int_eq(waitpid(first, &code, 0), first);
    expect_job(2, (int64_t[]){100, 0});
}
END_TEST

START_TEST(a_second_rank_0_is_told_who_has_the_path)
{
    pid_t first = start_rank(0, 2, 0);
    char who[32];
    rendezvous *r = NULL;
    for (int i = 0; i < 500 && access(path, F_OK) != 0; i++)
        clock_sleep_ms(10);
    snprintf(who, sizeof who, "pid %d", (int)first);
    ck_assert_int_eq(join(0, 2, JOIN_MS, &r), STATUS_INVALID);
    ASSERT_FACTS(status_text(), path, who, "127.0.0.1:");
    ck_assert_int_eq(access(path, F_OK), 0); /* it stays the first one's */
    ck_assert_int_eq(run_rank(1, 2, 0), 0);
    int code;
    ck_assert_int_eq(waitpid(first, &code, 0), first);
    ck_assert_int_eq(code, 0);
}
END_TEST

/* The path is new, or a dead job has left it. */
START_TEST(of_rank_0s_in_the_same_instant_one_has_the_path)
{
    enum { JOBS = 4 };
    int code;
    if (_i % 2 == 1)
        write_line("127.0.0.1", port_find_free(), host_number());
    for (int i = 0; i < JOBS; i++)
        start_rank(0, 2, 20);
    for (int i = 0; i < JOBS - 1; i++) {
        ck_assert_int_gt(waitpid(-1, &code, 0), 0);
        ck_assert_int_eq(WEXITSTATUS(code), STATUS_INVALID);
    }
    ck_assert_int_eq(run_rank(1, 2, 0), 0);
    ck_assert_int_gt(waitpid(-1, &code, 0), 0);
    ck_assert_int_eq(code, 0);
    ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

START_TEST(what_a_rank_0_has_left_on_its_way_is_named)
{
    rendezvous *r = NULL;
    char next[80];
    snprintf(next, sizeof next, "%s.next", path);
    FILE *file = fopen(next, "we");
    ck_assert_ptr_nonnull(file);
    fclose(file);
    ck_assert_int_eq(join(0, 2, JOIN_MS, &r), STATUS_INVALID);
    ASSERT_FACTS(status_text(), path, next, "remove");
    unlink(next);
}
END_TEST

START_TEST(other_files_are_left_alone)
{
    rendezvous *r = NULL;
    char text[64];
    write_text("my thesis\n");
    for (int rank = 0; rank < 2; rank++) {
        int64_t start_ns = clock_now_ns();
        ck_assert_int_eq(join(rank, 2, JOIN_MS, &r), STATUS_INVALID);
        ASSERT_FACTS(status_text(), path, "new");
        ck_assert_int_le((clock_now_ns() - start_ns) / 1000000, 1000);
    }
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(fgets(text, sizeof text, file));
    ck_assert_str_eq(text, "my thesis\n");
    fclose(file);
}
END_TEST

/* Replaced, it would lead the others nowhere. */
START_TEST(a_link_is_left_alone)
{
    rendezvous *r = NULL;
    char text[64] = "";
    ck_assert_int_eq(symlink("elsewhere", path), 0);
    ck_assert_int_eq(join(0, 2, JOIN_MS, &r), STATUS_INVALID);
    ASSERT_FACTS(status_text(), path, "link");
    ck_assert_int_gt(readlink(path, text, sizeof text - 1), 0);
    ck_assert_str_eq(text, "elsewhere");
}
END_TEST

START_TEST(a_wait_ends_with_what_is_missing)
{
    rendezvous *r = NULL;
    ck_assert_int_eq(join(1, 2, 200, &r), STATUS_TIMEOUT);
    ASSERT_FACTS(status_text(), "rank 1", path, "0.2 s", "no such file");
    int port = port_find_free();
    char address[32];
    write_line("127.0.0.1", port, host_number());
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    ck_assert_int_eq(join(1, 2, 200, &r), STATUS_TIMEOUT);
    ASSERT_FACTS(status_text(), "rank 1", path, address, "refused");
}
END_TEST

/* The ranks that are missing are named by rank 0, which takes its file away. */
START_TEST(rank_0_alone_names_the_missing)
{
    rendezvous *r = NULL;
    ck_assert_int_eq(join(0, 2, 300, &r), STATUS_TIMEOUT);
    ASSERT_FACTS(status_text(), "1 of 2 ranks");
    ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

START_TEST(an_address_of_another_hosts_loopback_is_an_error)
{
    rendezvous *r = NULL;
    write_line("127.0.0.1", 1234, host_number() + 1);
    ck_assert_int_eq(join(1, 2, JOIN_MS, &r), STATUS_INVALID);
    ASSERT_FACTS(status_text(), path, "127.0.0.1:1234", "--local-addr=ADDRESS");
}
END_TEST

START_TEST(a_folder_that_is_not_there_is_an_error)
{
    rendezvous *r = NULL;
    rendezvous_place place = place_of(0, 2);
    snprintf(place.init_file, sizeof place.init_file, "%s/none/init", folder);
    ck_assert_int_eq(rendezvous_join(&place, JOIN_MS, JOIN_MS, &r), STATUS_IO);
    ASSERT_FACTS(status_text(), "none/init");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("init_file");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_checked_fixture(core, make_folder, remove_folder);
    tcase_add_loop_test(core, ranks_find_each_other, 0, 3);
    tcase_add_test(core, an_empty_file_is_as_good_as_none);
    tcase_add_test(core, what_a_dead_job_has_left_is_replaced);
    tcase_add_test(core, the_store_of_another_job_is_not_joined);
    tcase_add_test(core, a_killed_rank_0_leaves_a_file_that_the_next_job_replaces);
    tcase_add_test(core, a_second_rank_0_is_told_who_has_the_path);
    tcase_add_loop_test(core, of_rank_0s_in_the_same_instant_one_has_the_path, 0, 10);
    tcase_add_test(core, what_a_rank_0_has_left_on_its_way_is_named);
    tcase_add_test(core, other_files_are_left_alone);
    tcase_add_test(core, a_link_is_left_alone);
    tcase_add_test(core, a_wait_ends_with_what_is_missing);
    tcase_add_test(core, rank_0_alone_names_the_missing);
    tcase_add_test(core, an_address_of_another_hosts_loopback_is_an_error);
    tcase_add_test(core, a_folder_that_is_not_there_is_an_error);
    return suite_run(suite);
}
