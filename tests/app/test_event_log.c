/* --event-log: whole lines from many writers, and what is not written ends nothing. */
#include "app/common/event_log.h"
#include "base/file.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WRITERS = 4, LINES = 200 };

static char folder[FILE_PATH_BYTES], path[FILE_PATH_BYTES];

static void open_folder(void)
{
    ck_assert_int_eq(file_make_temporary_folder(NULL, "event_log", folder), STATUS_OK);
    ck_assert_int_eq(file_join(folder, "events.jsonl", path), STATUS_OK);
}

static void remove_folder(void)
{
    unlink(path);
    rmdir(folder);
}

static event_log *open_log(const char *node)
{
    event_log *log = NULL;
    ck_assert_int_eq(event_log_open(path, "job", node, &log), STATUS_OK);
    ck_assert_ptr_nonnull(log);
    return log;
}

/* The next line of the file as JSON; NULL at its end. */
static json_t *next_line(FILE *file)
{
    char *line = NULL;
    size_t room = 0;
    json_t *value = NULL;
    ssize_t length;
    while ((length = getline(&line, &room, file)) == 1) /* an empty line means nothing */
        continue;
    if (length > 0) {
        value = json_loads(line, 0, NULL);
        ck_assert_msg(value != NULL, "no JSON: %s", line);
    }
    free(line);
    return value;
}

static const char *text_of(const json_t *line, const char *key)
{
    return json_string_value(json_object_get(line, key));
}

START_TEST(a_round_is_told_with_its_members_and_their_ranks)
{
    round_node members[2] = {{.id = "a_1", .nproc = 2}, {.id = "b_2", .nproc = 3}};
    round_state now = {.round = 4, .restarts = 1, .members = members, .n = 2};
    event_log *log = open_log("b_2");
    event_log_round_begins(log, &now, 1);
    event_log_close(log);
    FILE *file = fopen(path, "r");
    json_t *line = next_line(file);
    ck_assert_str_eq(text_of(line, "event"), "round_begins");
    ck_assert_str_eq(text_of(line, "node"), "b_2");
    ck_assert_str_eq(text_of(line, "run_id"), "job");
    ck_assert_uint_eq(strlen(text_of(line, "time")), strlen("2026-11-23T11:30:02.117Z"));
    ck_assert_int_eq(json_integer_value(json_object_get(line, "round")), 4);
    ck_assert_int_eq(json_integer_value(json_object_get(line, "world_size")), 5);
    ck_assert_int_gt(json_integer_value(json_object_get(line, "monotonic_ns")), 0);
    const json_t *second = json_array_get(json_object_get(line, "members"), 1);
    ck_assert_str_eq(text_of(second, "node"), "b_2");
    ck_assert_int_eq(json_integer_value(json_object_get(second, "first_rank")), 2);
    json_decref(line);
    fclose(file);
}
END_TEST

START_TEST(lines_of_many_processes_do_not_mix)
{
    int counts[WRITERS] = {0};
    char long_reason[2000] = "";
    memset(long_reason, 'x', sizeof long_reason - 1);
    for (int w = 0; w < WRITERS; w++) {
        if (fork() != 0)
            continue;
        char node[] = {(char)('0' + w), '\0'};
        event_log *log = open_log(node);
        for (int i = 0; i < LINES; i++)
            event_log_text(log, i, EVENT_LOG_LEAVES, long_reason);
        event_log_close(log);
        _exit(0);
    }
    for (int w = 0; w < WRITERS; w++)
        wait(NULL);
    FILE *file = fopen(path, "r");
    json_t *line;
    while ((line = next_line(file)) != NULL) {
        int w = text_of(line, "node")[0] - '0';
        ck_assert_int_eq(json_integer_value(json_object_get(line, "round")), counts[w]++);
        json_decref(line);
    }
    fclose(file);
    for (int w = 0; w < WRITERS; w++)
        ck_assert_int_eq(counts[w], LINES);
}
END_TEST

/* A limit on the size of the file stands for a full disk: the line that does not fit is cut. */
START_TEST(a_full_disk_is_said_once_and_later_lines_are_whole)
{
    struct rlimit room, before;
    signal(SIGXFSZ, SIG_IGN);
    event_log *log = open_log("a");
    event_log_text(log, 0, EVENT_LOG_LEAVES, "first");
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    room = before;
    room.rlim_cur = 200; /* the second line begins, and does not end */
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &room), 0);
    int saved = dup(STDERR_FILENO), pipe_fds[2];
    ck_assert_int_eq(pipe(pipe_fds), 0);
    dup2(pipe_fds[1], STDERR_FILENO);
    for (int i = 0; i < 3; i++)
        event_log_text(log, 1, EVENT_LOG_LEAVES, "cut");
    dup2(saved, STDERR_FILENO);
    close(pipe_fds[1]);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    event_log_ends(log, 2, 0);
    event_log_close(log);
    char said[4096] = "";
    ck_assert_int_gt(read(pipe_fds[0], said, sizeof said - 1), 0);
    ASSERT_FACTS(said, "--event-log", "events.jsonl");
    ck_assert_ptr_eq(strchr(said, '\n'), strrchr(said, '\n'));
    char *text = NULL;
    size_t size_bytes;
    ck_assert_int_eq(file_read(path, 1 << 16, &text, &size_bytes), STATUS_OK);
    const char *last = strstr(text, "\n{\"time\"");
    for (const char *next = last; next != NULL; next = strstr(last + 1, "\n{\"time\""))
        last = next;
    ck_assert_ptr_nonnull(last);
    json_t *line = json_loads(last, 0, NULL);
    ck_assert_str_eq(text_of(line, "event"), "ends");
    json_decref(line);
    free(text);
}
END_TEST

START_TEST(a_line_that_a_killed_process_left_is_ended)
{
    FILE *file = fopen(path, "w");
    fputs("{\"time\":", file);
    fclose(file);
    event_log *log = open_log("a");
    event_log_text(log, 7, EVENT_LOG_CLOSED, "done");
    event_log_close(log);
    file = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    ck_assert_int_gt(getline(&line, &room, file), 0);
    free(line);
    json_t *value = next_line(file);
    ck_assert_str_eq(text_of(value, "event"), "closed");
    json_decref(value);
    fclose(file);
}
END_TEST

START_TEST(each_kind_of_text_has_its_key)
{
    static const char *const want[][2] = {[EVENT_LOG_NODE_GONE] = {"node_gone", "gone"},
                                          [EVENT_LOG_NODE_LOST] = {"node_lost", "lost"},
                                          [EVENT_LOG_LEAVES] = {"leaves", "reason"},
                                          [EVENT_LOG_CLOSED] = {"closed", "reason"}};
    event_log *log = open_log("a");
    event_log_text(log, 7, (event_log_kind)_i, "why");
    event_log_close(log);
    FILE *file = fopen(path, "r");
    json_t *line = next_line(file);
    ck_assert_str_eq(text_of(line, "event"), want[_i][0]);
    ck_assert_str_eq(text_of(line, want[_i][1]), "why");
    json_decref(line);
    fclose(file);
}
END_TEST

START_TEST(no_path_is_no_log_and_a_wrong_one_is_refused)
{
    event_log *log = NULL;
    ck_assert_int_eq(event_log_open(NULL, "job", "a", &log), STATUS_OK);
    ck_assert_ptr_null(log);
    event_log_ends(log, 0, 0);
    event_log_close(log);
    ck_assert_int_eq(event_log_open("/nowhere/at/all", "job", "a", &log), STATUS_IO);
    ASSERT_FACTS(status_text(), "--event-log", "/nowhere/at/all");
}
END_TEST

START_TEST(sums_tell_sets_of_samples_apart)
{
    uint64_t all = 0, twice = 0;
    for (int64_t i = 0; i < 60000; i++)
        all += event_log_sample(i);
    for (int64_t i = 0; i < 60000; i++)
        twice += event_log_sample(i == 777 ? 778 : i);
    ck_assert(all != twice);
    ck_assert(event_log_sample(0) != 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("event_log");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_checked_fixture(core, open_folder, remove_folder);
    tcase_add_test(core, a_round_is_told_with_its_members_and_their_ranks);
    tcase_add_test(core, lines_of_many_processes_do_not_mix);
    tcase_add_test(core, a_full_disk_is_said_once_and_later_lines_are_whole);
    tcase_add_test(core, a_line_that_a_killed_process_left_is_ended);
    tcase_add_loop_test(core, each_kind_of_text_has_its_key, EVENT_LOG_NODE_GONE,
                        EVENT_LOG_CLOSED + 1);
    tcase_add_test(core, no_path_is_no_log_and_a_wrong_one_is_refused);
    tcase_add_test(core, sums_tell_sets_of_samples_apart);
    return suite_run(suite);
}
