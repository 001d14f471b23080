/* A run on a terminal: Ctrl-C, and the end of the session, stop it at a step that is saved. */
#include "base/clock.h"
#include "tests/app/support/training.h"
#include "tests/support/process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { OUTPUT_BYTES = 1 << 16 };

/* The key's signal comes to all processes of the terminal's foreground group. */
static const char CTRL_C[] = "\x03";

/* A program that leads the session of a terminal of its own. */
typedef struct session {
    int terminal; /* our end; -1: closed */
    pid_t pid;
    size_t length;
    char shown[OUTPUT_BYTES];
} session;

/* In the new process: the terminal is its first, so it becomes the session's. */
__attribute__((noreturn)) static void lead(const char *terminal, const char *const *argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    int fd = open(terminal, O_RDWR);
    if (fd < 0 || dup2(fd, 0) < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
        _exit(127);
    close(fd);
    execv(argv[0], (char *const *)(const void *)argv);
    _exit(127);
}

/* Starts a training that lasts, with more flags. */
static void start(session *s, const char *ranks, const char *more)
{
    *s = (session){.terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)};
    ck_assert(s->terminal >= 0 && grantpt(s->terminal) == 0 && unlockpt(s->terminal) == 0);
    const char *name = ptsname(s->terminal);
    ck_assert(name != NULL);
    s->pid = fork();
    if (s->pid == 0)
        lead(name, WORDS(program_mnist_ddp(), "train", "--model", "mlp", "--limit", "240",
                         "--batch-size", "8", "--threads", "1", "--epochs", "100000", "--run-dir",
                         "run", "--backend", "shm", "--nproc-per-node", ranks, more));
    ck_assert_int_gt(s->pid, 0);
    fcntl(s->terminal, F_SETFL, O_NONBLOCK);
}

/* false: nothing was there to read. */
static bool read_more(session *s)
{
    if (s->length + 4096 > OUTPUT_BYTES) { /* the last of it will do */
        memmove(s->shown, s->shown + s->length / 2, s->length - s->length / 2);
        s->length -= s->length / 2;
    }
    ssize_t n = read(s->terminal, s->shown + s->length, 4095);
    s->length += n > 0 ? (size_t)n : 0;
    s->shown[s->length] = '\0';
    return n > 0;
}

static void await(session *s, const char *text)
{
    int64_t deadline_ns = clock_deadline_ns(RUN_S * 1000);
    while (strstr(s->shown, text) == NULL) {
        ck_assert_msg(!clock_passed(deadline_ns) && waitpid(s->pid, NULL, WNOHANG) == 0,
                      "no '%s' in: %s", text, s->shown);
        if (!read_more(s))
            clock_sleep_ms(POLL_MS);
    }
}

/* Reads until the program ends; its exit code. */
static int finish(session *s)
{
    int64_t deadline_ns = clock_deadline_ns(RUN_S * 1000);
    int how = 0;
    while (waitpid(s->pid, &how, WNOHANG) == 0) {
        ck_assert_msg(!clock_passed(deadline_ns), "it goes on: %s", s->shown);
        if (s->terminal < 0 || !read_more(s))
            clock_sleep_ms(POLL_MS);
    }
    while (s->terminal >= 0 && read_more(s))
        continue;
    if (s->terminal >= 0)
        close(s->terminal);
    return WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
}

static void press(session *s)
{
    ck_assert_int_eq(write(s->terminal, CTRL_C, 1), 1);
}

static void hang_up(session *s)
{
    close(s->terminal);
    s->terminal = -1;
}

/* The run goes on with the epoch that was stopped. */
static void assert_it_goes_on(const char *ranks)
{
    program p = program_run_with(NULL, WORDS("train", "--model", "mlp", "--limit", "240",
                                             "--batch-size", "8", "--threads", "1", "--epochs", "1",
                                             "--run-dir", "run", "--backend", "shm",
                                             "--nproc-per-node", ranks, "--json", "--resume"));
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, "resuming", "epoch", "step");
    program_close(&p);
}

static const char *const RANKS[] = {"1", "2"};

START_TEST(ctrl_c_saves)
{
    session s;
    start(&s, RANKS[_i], NULL);
    await(&s, "epoch 2/");
    press(&s);
    ck_assert_int_eq(finish(&s), 75);
    ASSERT_FACTS(s.shown, "SIGINT", "checkpoint", "once more");
    ASSERT_FACTS(s.shown, "stopped", "SIGINT", "epoch", "step");
    ASSERT_FACTS(s.shown, "--run-dir run", "--resume");
    ck_assert_msg(strstr(s.shown, "SIGUSR1") == NULL, "%s", s.shown);
    assert_it_goes_on(RANKS[_i]);
}
END_TEST

/* A step takes 20 s here: the second press does not wait for it. */
START_TEST(ctrl_c_twice_ends_it_at_once)
{
    session s;
    start(&s, RANKS[_i], "--inject=delay:rank=0,step=40,ms=20000");
    await(&s, "20000 ms");
    int64_t start_ns = clock_now_ns();
    press(&s);
    process_await_taken(s.pid, SIGINT);
    clock_sleep_ms(300); /* else they are one */
    ck_assert_int_eq(waitpid(s.pid, NULL, WNOHANG), 0);
    press(&s);
    ck_assert_int_eq(finish(&s), 128 + SIGINT);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5);
    ck_assert(file_exists("run/model.safetensors")); /* of an epoch before */
}
END_TEST

/* By a run that leaves none. */
START_TEST(no_checkpoint_is_promised)
{
    const char *flag = _i < 2 ? "MNIST_DDP_DRY_RUN" : "MNIST_DDP_NO_SAVE_MODEL";
    session s;
    setenv(flag, "1", 1);
    start(&s, RANKS[_i % 2], "--inject=delay:rank=0,step=1,ms=600");
    unsetenv(flag);
    await(&s, "600 ms");
    press(&s);
    int code = finish(&s);
    ck_assert(_i < 2 || code == 75); /* a dry run's only step is its last */
    ASSERT_FACTS(s.shown, "SIGINT", "at the", "step", "once more");
    ASSERT_SILENT(s.shown, "checkpoint");
}
END_TEST

/* A terminal that is stopped by Ctrl-S takes no line. The keys would start it again, so the signals
 * come from elsewhere. */
START_TEST(a_stopped_terminal_keeps_no_signal)
{
    static const char ctrl_s[] = "\x13";
    session s;
    start(&s, RANKS[_i], "--inject=delay:rank=0,step=40,ms=20000");
    await(&s, "20000 ms");
    ck_assert_int_eq(write(s.terminal, ctrl_s, 1), 1);
    clock_sleep_ms(100);
    int64_t start_ns = clock_now_ns();
    kill(s.pid, SIGINT);
    process_await_taken(s.pid, SIGINT);
    clock_sleep_ms(300); /* else they are one */
    ck_assert_int_eq(waitpid(s.pid, NULL, WNOHANG), 0);
    kill(s.pid, SIGINT);
    ck_assert_int_eq(finish(&s), 128 + SIGINT);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5);
}
END_TEST

/* What an ssh session leaves: no terminal, and a second SIGHUP. */
START_TEST(the_sessions_end_saves)
{
    session s;
    start(&s, RANKS[_i], "--inject=delay:rank=0,step=40,ms=400");
    await(&s, "400 ms");
    hang_up(&s);
    clock_sleep_ms(100);
    kill(-s.pid, SIGHUP);
    ck_assert_int_eq(finish(&s), 75);
}
END_TEST

/* timeout(1) sends its signal to the program, and then to the group that it is in. */
START_TEST(a_signal_sent_twice_over_is_one)
{
    session s;
    start(&s, RANKS[_i], "--inject=delay:rank=0,step=40,ms=300");
    await(&s, "300 ms");
    kill(s.pid, SIGTERM);
    process_await_taken(s.pid, SIGTERM);
    kill(-s.pid, SIGTERM);
    ck_assert_int_eq(finish(&s), 75);
    ASSERT_FACTS(s.shown, "stopped", "SIGTERM");
    ck_assert_msg(strstr(s.shown, "SIGUSR1") == NULL, "%s", s.shown);
}
END_TEST

/* As a shell starts it in the background, or nohup. */
START_TEST(what_is_ignored_stays_ignored)
{
    program p =
        program_start_with(WORDS("nohup"), WORDS(TRAINING_SMALL, "--epochs", "100000", "--run-dir",
                                                 "run", "--nproc-per-node", RANKS[_i]));
    program_await(&p, "epoch 2/");
    kill(-p.pid, SIGHUP);
    clock_sleep_ms(300);
    ck_assert(!process_is_gone(p.pid));
    kill(p.pid, SIGINT);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 75);
    ASSERT_FACTS(p.err, "stopped", "SIGINT");
    program_close(&p);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("interrupts");
    TCase *runs = suite_case(suite, "runs", 1.5 * RUN_S);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_loop_test(runs, ctrl_c_saves, 0, 2);
    tcase_add_loop_test(runs, ctrl_c_twice_ends_it_at_once, 0, 2);
    tcase_add_loop_test(runs, no_checkpoint_is_promised, 0, 4);
    tcase_add_loop_test(runs, a_stopped_terminal_keeps_no_signal, 0, 2);
    tcase_add_loop_test(runs, the_sessions_end_saves, 0, 2);
    tcase_add_loop_test(runs, a_signal_sent_twice_over_is_one, 0, 2);
    tcase_add_loop_test(runs, what_is_ignored_stays_ignored, 0, 2);
    return test_folder_close(suite_run(suite));
}
