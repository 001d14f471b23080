/* RUN/train.log: what rank 0 and the launcher said, in whole lines with their time. */
#include "app/common/run_log.h"
#include "tests/app/support/training.h"
#include "tests/support/port.h"
#include "tests/support/screen.h"

#include <regex.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define LOG "run/train.log"
#define TRAIN \
    "train", "--model", "mlp", "--limit", "192", "--batch-size", "16", "--threads", "1", \
        "--run-dir", "run"

enum { TIME_BYTES = 24, LINES = 2000 };

/* The lines of the file without their times; free with free(). Each has one and is plain text. */
static char *said(const char *path)
{
    char *text = test_folder_read(path), *out = calloc(1, strlen(text) + 1), *rest = text, *line;
    regex_t time;
    ck_assert_int_eq(regcomp(&time,
                             "^20[0-9]{2}-[01][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]:[0-6][0-9]"
                             "\\.[0-9]{3} [^[:cntrl:]]([^[:cntrl:]]|\t)*$",
                             REG_EXTENDED | REG_NOSUB),
                     0);
    ck_assert_msg(text[0] != '\0' && text[strlen(text) - 1] == '\n', "'%s'", text);
    while ((line = strsep(&rest, "\n")) != NULL && rest != NULL) {
        ck_assert_msg(regexec(&time, line, 0, NULL, 0) == 0, "'%s'", line);
        strcat(strcat(out, line + TIME_BYTES), "\n");
    }
    regfree(&time);
    free(text);
    return out;
}

/* Where the words stand. */
static const char *find(const char *text, const char *words)
{
    const char *at = strstr(text, words);
    ck_assert_msg(at != NULL, "'%s' is not in: %.2000s", words, text);
    return at;
}

/* Without the empty lines and colours. */
static char *plain(const char *text)
{
    char *out = calloc(1, strlen(text) + 1);
    size_t n = 0;
    for (; *text != '\0'; text++) {
        if (*text == '\033')
            text = strchr(text, 'm');
        else if (*text != '\n' || (n > 0 && out[n - 1] != '\n'))
            out[n++] = *text;
    }
    return out;
}

static const struct {
    const char *setting, *flag;
} SHOWN[] = {{"A=B", "--log-interval=4"},
             {"CLICOLOR_FORCE=1", "--log-interval=4"},
             {"A=B", "--log-format=pytorch"},
             {"A=B", "--json"}};
enum { N_SHOWN = sizeof SHOWN / sizeof SHOWN[0] };

/* What rank 0 shows, after a line that says when the run began and how. */
START_TEST(a_log_holds_what_was_shown)
{
    program p = program_run_with(WORDS("env", SHOWN[_i].setting),
                                 WORDS(TRAIN, "--epochs=2", SHOWN[_i].flag));
    ASSERT_EXIT(p, 0);
    char *log = said(LOG), *shown = plain(strcmp(SHOWN[_i].flag, "--json") == 0 ? p.err : p.out);
    const char *begin = find(log, "the run begins: "), *end = strchr(begin, '\n') + 1;
    ck_assert_ptr_eq(begin, log);
    ASSERT_FACTS(log, "run begins", "--epochs=2", SHOWN[_i].flag);
    ck_assert_str_eq(end, shown);
    ck_assert_int_gt(facts_count(end, "\n"), 6);
    free(log);
    free(shown);
    program_close(&p);
}
END_TEST

/* The same lines as without it. */
START_TEST(a_quiet_run_keeps_its_log)
{
    program p = program_run_with(NULL, WORDS(TRAIN, "--epochs=1", "--log-interval=6", "--quiet",
                                             program_flag("--nproc-per-node=", _i + 1)));
    ASSERT_EXIT(p, 0);
    ck_assert_str_eq(p.err, "");
    program_close(&p);
    char *log = said(LOG);
    ASSERT_FACTS(log, "mlp", "parameters", "seed 1");
    ASSERT_SAYS(log, _i == 0 ? "epoch 1/1 step 7/12 loss" : "epoch 1/1 step 1/6 loss");
    ASSERT_SAYS(log, "epoch 1/1: ");
    ASSERT_SAYS(log, "saved: run/model.safetensors");
    ASSERT_SAYS(log, "finished: 1 epoch");
    free(log);
    p = program_run_with(NULL, WORDS(TRAIN, "--epochs=2", "--resume", "--quiet",
                                     program_flag("--nproc-per-node=", _i + 1)));
    ASSERT_EXIT(p, 0);
    ck_assert_str_eq(p.err, "");
    program_close(&p);
    log = said(LOG);
    ASSERT_FACTS(log, "resuming run", "--epochs 1 -> 2");
    free(log);
}
END_TEST

/* The line about its learning rate is in the log alone. */
START_TEST(debug_off_leaves_a_run_quiet)
{
    program p = program_run_with(NULL, WORDS(TRAIN, "--epochs=1", "--scale-lr", "--quiet"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    p = program_run_with(NULL, WORDS(TRAIN, "--epochs=2", "--resume", "--scale-lr", "--quiet",
                                     "--debug=off", "--nproc-per-node=2"));
    ASSERT_EXIT(p, 0);
    ck_assert_int_eq(facts_count(p.err, "\n"), 1); /* as its bits are others now */
    ASSERT_FACTS(p.err, "the run began with sums");
    program_close(&p);
    char *log = said(LOG);
    ASSERT_FACTS(log, "--lr", "1 ranks", "2 ranks");
    free(log);
}
END_TEST

/* Where a status line takes their place on the terminal. */
START_TEST(steps_are_kept_beside_a_status_line)
{
    screen s;
    screen_start(80, true, WORDS(program_mnist_ddp(), TRAIN, "--epochs=2"), &s);
    screen_finish(&s);
    ASSERT_EXIT(s.program, 0);
    ASSERT_SILENT(s.lines, " step 1/12 ");
    screen_close(&s);
    char *log = said(LOG);
    ASSERT_FACTS(log, "epoch 1/2 step 1/12", "loss");
    free(log);
}
END_TEST

START_TEST(a_resumed_run_appends)
{
    program p = program_run_with(NULL, WORDS(TRAIN, "--epochs=1"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    char *first = said(LOG);
    p = program_run_with(NULL, WORDS(TRAIN, "--epochs=2", "--resume"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    char *both = said(LOG), *second = both + strlen(first);
    ck_assert_int_eq(strncmp(first, both, strlen(first)), 0);
    const char *told = find(second, "resuming run with --epochs 1 -> 2\n"),
               *resumed = find(second, "the run resumes after epoch 1: "),
               *epoch = find(second, "epoch 2/2: ");
    ck_assert(told == second && told < resumed && resumed < epoch);
    ASSERT_SILENT(second, "run begins");
    free(first);
    free(both);
}
END_TEST

/* The launcher's words stand where they were said: before rank 0 had the folder, its report of the
 * failure, and that all ranks start again. */
START_TEST(the_run_log_has_the_launchers_lines)
{
    program p = program_run_with(NULL, WORDS(TRAIN, "--epochs=2", "--nproc-per-node=2",
                                             "--local-ranks-filter=9", "--save-every=2steps",
                                             "--max-restarts=1", "--inject=kill:rank=1,step=8"));
    ASSERT_EXIT(p, 0);
    char *log = said(LOG);
    const char *early = find(log, "warning: --local-ranks-filter=9"),
               *begun = find(log, "the run begins: "), *lost = find(log, "[rank 0] error: "),
               *report = find(log, "warning: rank 1 failed first: SIGKILL"),
               *hint = find(report, "\n  hint: "),
               *again = find(log, "the run resumes after epoch 1, restart 1: "),
               *end = find(log, "finished: ");
    ck_assert(early == log && early < begun && begun < lost && lost < report && report < hint);
    ck_assert(hint < again && again < end);
    ASSERT_FACTS(log, "rank 1", "SIGKILL", "restart 1 of 1");
    ASSERT_FACTS(log, "run resumes", "restart 1", "--nproc-per-node=2");
    ck_assert_int_eq(facts_count(log, "--local-ranks-filter=9 shows"), 1);
    ck_assert_int_eq(facts_count(log, "failed first"), 1);
    ck_assert_int_eq(facts_count(log, "epoch 2/2: "), 1);
    free(log);
    program_close(&p);
}
END_TEST

/* Two launchers: of node 1's, whose rank is killed, nothing is there twice. */
START_TEST(of_several_nodes_the_first_writes)
{
    program p[2];
    int port = port_find_free();
    for (int node = 0; node < 2; node++)
        p[node] = program_start_with(
            NULL, WORDS(TRAIN, "--epochs=2", "--nnodes=2", "--master-addr=127.0.0.1",
                        program_flag("--master-port=", port), program_flag("--node-rank=", node),
                        "--inject=kill:rank=1,step=8"));
    for (int node = 0; node < 2; node++)
        program_wait(&p[node], RUN_S);
    ASSERT_EXIT(p[0], 128 + SIGKILL);
    ASSERT_EXIT(p[1], 128 + SIGKILL);
    ASSERT_FACTS(p[1].err, "rank 1", "failed first");
    char *log = said(LOG);
    ck_assert_int_eq(facts_count(log, "rank 1 failed first"), 1);
    ck_assert_int_eq(facts_count(log, "  hint: "), 1);
    ASSERT_SILENT(log, "\n[rank 1] ");
    free(log);
    program_close(&p[0]);
    program_close(&p[1]);
}
END_TEST

/* As torchrun starts them. */
START_TEST(rank_0_of_another_launcher_writes)
{
    program p[2];
    int port = port_find_free();
    char words[2][64];
    for (int rank = 0; rank < 2; rank++) {
        snprintf(words[rank], sizeof words[rank], "MASTER_PORT=%d", port);
        p[rank] =
            program_start_with(WORDS("env", rank == 0 ? "RANK=0" : "RANK=1",
                                     rank == 0 ? "LOCAL_RANK=0" : "LOCAL_RANK=1", "WORLD_SIZE=2",
                                     "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", words[rank]),
                               WORDS(TRAIN, "--epochs=1", "--inject=delay:rank=1,step=2,ms=1"));
    }
    for (int rank = 0; rank < 2; rank++) {
        program_wait(&p[rank], RUN_S);
        ASSERT_EXIT(p[rank], 0);
    }
    char *log = said(LOG);
    ASSERT_SAYS(log, "\nepoch 1/1: ");
    ck_assert_int_eq(facts_count(log, "run begins"), 1);
    ASSERT_SILENT(log, "[rank 1] ");
    free(log);
    program_close(&p[0]);
    program_close(&p[1]);
}
END_TEST

/* The folder is another run's, or there is none. */
START_TEST(a_refused_run_writes_nothing)
{
    const char *ranks = program_flag("--nproc-per-node=", _i + 1);
    program first = program_start_with(
        NULL, WORDS(TRAIN, "--epochs=1", "--inject=delay:rank=0,step=1,ms=20000"));
    program_await(&first, "injected", "20000 ms");
    program second = program_run_with(NULL, WORDS(TRAIN, "--epochs=1", ranks));
    ASSERT_EXIT(second, 74);
    ASSERT_FACTS(second.err, "error", "run");
    program_close(&second);
    kill(first.pid, SIGKILL);
    program_wait(&first, RUN_S);
    program_close(&first);
    char *log = said(LOG);
    ck_assert_int_eq(facts_count(log, "run begins"), 1);
    ASSERT_SILENT(log, "error");
    free(log);
    test_folder_remove("run");
    second = program_run_with(NULL, WORDS(TRAIN, "--data-dir=nowhere", ranks));
    ASSERT_EXIT(second, 65);
    program_close(&second);
    ck_assert(!file_exists("run"));
    second = program_run_with(NULL, WORDS(TRAIN, "--dry-run", ranks));
    ASSERT_EXIT(second, 0);
    program_close(&second);
    ck_assert(!file_exists("run"));
}
END_TEST

/* A disk that is full, and a folder in the file's place. */
START_TEST(a_log_that_cannot_be_written_is_one_warning)
{
    test_folder_require(file_make_folders("run"));
    if (_i % 2 == 0)
        ck_assert_int_eq(symlink("/dev/full", LOG), 0);
    else
        ck_assert_int_eq(mkdir(LOG, 0777), 0);
    program p = program_run_with(NULL, WORDS(TRAIN, "--epochs=1", "--log-interval=1",
                                             program_flag("--nproc-per-node=", 1 + _i / 2)));
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, "warning", LOG, _i % 2 == 0 ? "No space left" : "Is a directory");
    ck_assert_int_eq(facts_count(p.err, "warning"), 1);
    ASSERT_SAYS(p.out, "finished: 1 epoch");
    ck_assert(file_exists("run/model.safetensors"));
    program_close(&p);
}
END_TEST

/* No file may be longer than this. What comes after the line that it has cut begins a new one. */
START_TEST(a_torn_line_is_ended)
{
    enum { LIMIT = 1 << 18, ROOM = 300 }; /* the page has room */
    static char before[LIMIT - ROOM + 1];
    struct rlimit limit = {LIMIT, RLIM_INFINITY};
    memset(before, 'x', sizeof before - 1);
    before[sizeof before - 2] = '\n';
    test_folder_require(file_make_folders("run"));
    test_folder_write(LOG, before);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = LIMIT;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    program p = program_run_with(NULL, WORDS(TRAIN, "--epochs=1", "--no-save-model"));
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, "warning", LOG, "File too large");
    ck_assert_int_eq(facts_count(p.err, "warning"), 1);
    program_close(&p);
    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct stat about;
    ck_assert_int_eq(stat(LOG, &about), 0);
    ck_assert_int_eq(about.st_size, LIMIT);
    p = program_run_with(NULL, WORDS(TRAIN, "--epochs=1", "--no-save-model"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    char *text = NULL;
    size_t size_bytes = 0;
    test_folder_require(file_read(LOG, 2 * LIMIT, &text, &size_bytes));
    ck_assert(text[LIMIT] == '\n' && text[LIMIT + 1] == '2');
    ASSERT_SAYS(text + LIMIT, "the run begins: ");
    free(text);
}
END_TEST

static const char *const LENGTHS = "so that their lengths differ by some letters";

static void say_many(const char *who, int first, int n)
{
    for (int i = first; i < first + n; i++)
        run_log_line("%s %d %s", who, i, LENGTHS + i % 30);
}

/* Each of its lines once, in their order. */
static void expect_all(const char *log, const char *who, int n)
{
    char line[128];
    const char *at = log;
    for (int i = 0; i < n; i++) {
        int length = snprintf(line, sizeof line, "%s %d %s\n", who, i, LENGTHS + i % 30);
        at = find(at, line);
        ck_assert(at == log || at[-1] == '\n');
        at += length;
    }
    snprintf(line, sizeof line, "\n%s ", who);
    ck_assert_int_eq(facts_count(log, line) + (strncmp(log, who, strlen(who)) == 0), n);
}

/* Rank 0, with the launcher's spool. */
static pid_t start_rank(const char *spool, int first, int early, int n)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    setenv("MNIST_DDP_RUN_LOG", spool, 1);
    run_log_begin();
    say_many("rank", first, early);
    run_log_open("run");
    say_many("rank", first + early, n - early);
    _exit(0);
}

static void await(pid_t pid)
{
    int how = -1;
    ck_assert_int_eq(waitpid(pid, &how, 0), pid);
    ck_assert_int_eq(how, 0);
}

/* The launcher and rank 0 at once, while the one's spool becomes the other's file. Then another
 * rank 0, which does not take it again. */
START_TEST(lines_of_two_stay_whole)
{
    char spool[16];
    test_folder_require(file_make_folders("run"));
    run_log_begin();
    run_log_follow("run");
    say_many("launcher", 0, 5);
    snprintf(spool, sizeof spool, "%d", run_log_spool());
    pid_t pid = start_rank(spool, 0, 50, LINES - 10);
    say_many("launcher", 5, LINES - 5);
    await(pid);
    await(start_rank(spool, LINES - 10, 5, 10));
    run_log_line("the last");
    char *log = said(LOG);
    expect_all(log, "launcher", LINES);
    expect_all(log, "rank", LINES);
    ck_assert_int_eq(facts_count(log, "\n"), 2 * LINES + 1);
    ck_assert_int_eq(strncmp(log, "launcher 0 ", 11), 0);
    ck_assert_int_eq(run_log_spool(), -1);
    free(log);
}
END_TEST

/* The launcher has filled the spool before rank 0 has the folder: what did not fit is missing, what
 * comes after rank 0 has it is there. */
START_TEST(a_full_spool_does_not_hide_the_file)
{
    enum { EARLY = 8000 };
    char spool[16];
    test_folder_require(file_make_folders("run"));
    run_log_begin();
    run_log_follow("run");
    say_many("launcher", 0, EARLY);
    snprintf(spool, sizeof spool, "%d", run_log_spool());
    await(start_rank(spool, 0, 0, 1));
    run_log_line("the last %s", LENGTHS);
    char *log = said(LOG);
    find(log, "launcher 1000 ");
    ASSERT_SILENT(log, "launcher 7999 ");
    find(find(log, "rank 0 "), "the last so that");
    free(log);
}
END_TEST

/* How many descriptors of this process are of the log. */
static int count_open(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++) {
        char name[32], target[FILE_PATH_BYTES] = "";
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        n += readlink(name, target, sizeof target - 1) > 0 && strstr(target, LOG) != NULL;
    }
    return n;
}

/* A job of many rounds has a limit on its descriptors. */
START_TEST(a_log_that_is_left_is_closed)
{
    test_folder_require(file_make_folders("run"));
    run_log_begin();
    run_log_open("run");
    ck_assert_int_eq(count_open(), 1);
    run_log_leave();
    ck_assert_int_eq(count_open(), 0);
    run_log_end();
}
END_TEST

START_TEST(lines_are_plain)
{
    static const char text[] = "\033[31merror:\033[0m a\r\033[K\nb\tc\a\n\n\033[1;2m\ncaf\xc3\xa9";
    static char longest[20000];
    memset(longest, 'x', sizeof longest - 1);
    test_folder_require(file_make_folders("run"));
    run_log_begin();
    run_log_say(text, sizeof text - 1);
    run_log_open("run");
    run_log_say(longest, sizeof longest - 1);
    run_log_line("%s", "the end");
    run_log_end();
    run_log_line("%s", "not any more");
    char *log = said(LOG);
    const char *rest = find(log, "error: a\nb\tc\ncaf\xc3\xa9\nxxxx");
    ck_assert_ptr_eq(rest, log);
    ck_assert_uint_eq(strspn(strstr(log, "xxxx"), "x"), 8192);
    ASSERT_SAYS(log, "x\nthe end\n");
    ASSERT_SILENT(log, "any more");
    free(log);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    setenv("TERM", "xterm", 1);
    Suite *suite = suite_create("run_log");
    TCase *lines = suite_case(suite, "lines", 20);
    tcase_add_checked_fixture(lines, test_folder_clean, NULL);
    tcase_add_test(lines, a_log_that_is_left_is_closed);
    tcase_add_test(lines, lines_are_plain);
    tcase_add_test(lines, lines_of_two_stay_whole);
    tcase_add_test(lines, a_full_spool_does_not_hide_the_file);
    TCase *runs = suite_case(suite, "runs", 2 * RUN_S);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_loop_test(runs, a_log_holds_what_was_shown, 0, N_SHOWN);
    tcase_add_loop_test(runs, a_quiet_run_keeps_its_log, 0, 2);
    tcase_add_test(runs, debug_off_leaves_a_run_quiet);
    tcase_add_test(runs, steps_are_kept_beside_a_status_line);
    tcase_add_test(runs, a_resumed_run_appends);
    tcase_add_test(runs, the_run_log_has_the_launchers_lines);
    suite_add(runs, of_several_nodes_the_first_writes, 0,
              training_has_gloo() ? NULL : "gloo is not in this build");
    tcase_add_test(runs, rank_0_of_another_launcher_writes);
    tcase_add_loop_test(runs, a_refused_run_writes_nothing, 0, 2);
    tcase_add_loop_test(runs, a_log_that_cannot_be_written_is_one_warning, 0, 4);
    tcase_add_test(runs, a_torn_line_is_ended);
    return test_folder_close(suite_run(suite));
}
