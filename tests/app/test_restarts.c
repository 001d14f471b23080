/* Ranks and launchers killed at random instants: what comes out has the bits of a run that nobody
 * disturbed, nobody is left over, and training goes on soon.
 *
 * $MNIST_DDP_SOAK_KILLS (10, or 4 under sanitizers) workers are killed, every fourth within 200 ms
 * of a start, and a fourth as many launchers; $MNIST_DDP_SOAK_SEED repeats a run of this test as
 * far as chance allows.
 */
#include "base/clock.h"
#include "dist/health/rank_status.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"

#include <dirent.h>
#include <glob.h>
#include <signal.h>

enum {
    N_RANKS = 4,
#ifdef SANITIZED
    KILLS = 4,
#else
    KILLS = 10,
#endif
    KILLS_PER_RUN = 5,
    SOON_MS = 200,
    LATE_MS = 1500,
    KILL_S = 30, /* at most, from one kill to the next */
    LOOK_MS = 1,
};

/* 5 steps an epoch, with a checkpoint after every second. */
#define JOB \
    "train", "--model", "mlp", "--limit", "160", "--batch-size", "8", "--epochs", "24", \
        "--threads", "1", "--save-every", "2steps", "--json", "--quiet", "--nproc-per-node", "4", \
        "--backend"

static unsigned seed;

static int random_ms(int most)
{
    return rand_r(&seed) % most;
}

static int number_from(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : otherwise;
}

/* The page of a rank in an attempt, once it is there. */
static bool see_rank(int attempt, int rank, rank_snapshot *out)
{
    char pattern[80];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "logs/*/attempt_%d/ranks", attempt);
    bool seen = glob(pattern, 0, NULL, &found) == 0 &&
                rank_status_read(found.gl_pathv[0], rank, out) == STATUS_OK &&
                out->attempt == attempt;
    globfree(&found);
    return seen;
}

/* An attempt as the test follows it. */
typedef struct watched {
    program *p;
    int attempt;
    int64_t first_step; /* -1: none has begun */
} watched;

/* Has a step of this attempt been taken? The next one has begun then, or the run is over. */
static bool has_stepped(watched *w)
{
    rank_snapshot snapshot;
    if (!see_rank(w->attempt, 0, &snapshot) || snapshot.step == 0)
        return false;
    if (w->first_step < 0)
        w->first_step = snapshot.step;
    return snapshot.step > w->first_step;
}

/* Returns false where the run has ended before. */
static bool await_step(watched *w)
{
    int64_t deadline_ns = clock_deadline_ns(KILL_S * 1000);
    while (!has_stepped(w)) {
        if (process_is_gone(w->p->pid))
            return false;
        if (clock_passed(deadline_ns)) {
            char *text = program_peek(w->p);
            kill(-w->p->pid, SIGKILL);
            ck_abort_msg("attempt %d takes no step: %s", w->attempt, text);
        }
        clock_sleep_ms(LOOK_MS);
    }
    return true;
}

/* Until all ranks have their pages: the attempt has been started. */
static bool await_start(watched *w)
{
    int64_t deadline_ns = clock_deadline_ns(KILL_S * 1000);
    rank_snapshot snapshot;
    for (int rank = 0; rank < N_RANKS; rank++)
        while (!see_rank(w->attempt, rank, &snapshot)) {
            if (process_is_gone(w->p->pid))
                return false;
            ck_assert_msg(!clock_passed(deadline_ns), "attempt %d does not start", w->attempt);
            clock_sleep_ms(LOOK_MS);
        }
    return true;
}

/* Times from a kill to the first step behind it. */
static double recovered_s[100000];
static int n_recovered;

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* How many processes of a group live. Zombies do not: who has to reap them may be slow. */
static int living(pid_t group)
{
    int n = 0;
    char text[512];
    DIR *list = opendir("/proc");
    for (struct dirent *e = list != NULL ? readdir(list) : NULL; e != NULL; e = readdir(list)) {
        int pid = atoi(e->d_name), its_group = 0;
        if (pid <= 0)
            continue;
        process_read(pid, "stat", text, sizeof text);
        const char *end = strrchr(text, ')');
        n += end != NULL && sscanf(end, ") %*c %*d %d", &its_group) == 1 && its_group == group &&
             !process_is_gone(pid);
    }
    if (list != NULL)
        closedir(list);
    return n;
}

static void assert_nobody_left(pid_t group, int within_ms)
{
    int64_t deadline_ns = clock_deadline_ns(within_ms);
    while (living(group) > 0 && !clock_passed(deadline_ns))
        clock_sleep_ms(POLL_MS);
    int left = living(group);
    if (left > 0)
        kill(-group, SIGKILL);
    ck_assert_msg(left == 0, "%d processes are left over after %d ms", left, within_ms);
}

static void assert_same_as_whole(void)
{
    const char *whole = "whole";
    if (!file_exists(whole)) {
        program p = program_run_with(NULL, WORDS(JOB, training_backend, "--run-dir", whole));
        ASSERT_EXIT(p, 0);
        program_close(&p);
    }
    model_file_assert_same_bits("part", whole);
}

/* Kills one rank of this attempt; false where the run came to its end first. */
static bool kill_one(watched *w, bool soon)
{
    if (!(soon ? await_start(w) : await_step(w)))
        return false;
    clock_sleep_ms(random_ms(soon ? SOON_MS : LATE_MS));
    rank_snapshot snapshot;
    pid_t victim = see_rank(w->attempt, random_ms(N_RANKS), &snapshot) ? snapshot.pid : 0;
    if (victim == 0 || process_is_gone(victim) || process_is_gone(w->p->pid))
        return false;
    int64_t killed_ns = clock_now_ns();
    if (kill(victim, SIGKILL) != 0)
        return false;
    w->attempt++;
    w->first_step = -1;
    /* At the run's very end a rank may be killed that had nothing left to do. */
    if (soon || !await_step(w))
        return true;
    recovered_s[n_recovered++] = clock_seconds(clock_now_ns() - killed_ns);
    return true;
}

START_TEST(killed_ranks_leave_no_trace)
{
    int kills = number_from("MNIST_DDP_SOAK_KILLS", KILLS), done = 0, runs = 0;
    seed = (unsigned)number_from("MNIST_DDP_SOAK_SEED", (int)(clock_now_ns() & 0xffff));
    printf("seed %u\n", seed);
    while (done < kills) {
        runs++;
        int here = 0;
        test_folder_remove("part logs");
        program p = program_start_with(NULL, WORDS(JOB, training_backend, "--run-dir", "part",
                                                   "--log-dir", "logs", "--max-restarts", "5"));
        watched w = {.p = &p, .first_step = -1};
        while (here < KILLS_PER_RUN && done < kills && kill_one(&w, done % 4 == 3)) {
            here++;
            done++;
        }
        program_wait(&p, 2 * RUN_S);
        ASSERT_EXIT(p, 0);
        assert_nobody_left(p.pid, 1000);
        assert_same_as_whole();
        ck_assert_msg(runs <= kills, "runs end before anybody can be killed");
        program_close(&p);
    }
    ck_assert_int_gt(n_recovered, 0);
    qsort(recovered_s, (size_t)n_recovered, sizeof recovered_s[0], ascending);
    double median_s = recovered_s[n_recovered / 2];
    double p95_s = recovered_s[(n_recovered * 95 - 1) / 100];
    printf("%d kills in %d runs; from kill to step: median %.2f s, p95 %.2f s, worst %.2f s\n",
           done, runs, median_s, p95_s, recovered_s[n_recovered - 1]);
#ifndef SANITIZED
    ck_assert_msg(p95_s <= 2, "from kill to the first new step: p95 %.2f s", p95_s);
#endif
}
END_TEST

/* Each time the launcher dies, and the same command line goes on. */
START_TEST(killed_launchers_leave_nobody)
{
    int kills = (number_from("MNIST_DDP_SOAK_KILLS", KILLS) + 3) / 4;
    test_folder_remove("part logs");
    for (int i = 0; i <= kills; i++) {
        pid_t pids[MAX_RANKS];
        program p = program_start_with(NULL, WORDS(JOB, training_backend, "--run-dir", "part",
                                                   "--log-dir", "logs", "--resume=auto"));
        if (i == kills) {
            program_wait(&p, 2 * RUN_S);
            ASSERT_EXIT(p, 0);
            program_close(&p);
            break;
        }
        clock_sleep_ms(100 + random_ms(LATE_MS));
        int n = process_children(p.pid, pids);
        kill(p.pid, SIGKILL);
        process_assert_gone(pids, n, 1000);
        program_wait(&p, RUN_S);
        assert_nobody_left(p.pid, 1000);
        ck_assert(p.exit_code == 128 + SIGKILL || p.exit_code == 0);
        program_close(&p);
    }
    assert_same_as_whole();
}
END_TEST

/* With --backend=gloo: on that backend. */
int main(int argc, char **argv)
{
    if (!training_choose_backend(argc, argv))
        return TEST_SKIPPED;
    program_clean_environment();
    test_folder_open();
    setvbuf(stdout, NULL, _IOLBF, 0);
    int kills = number_from("MNIST_DDP_SOAK_KILLS", KILLS);
    Suite *suite = suite_create("restarts");
    TCase *runs = suite_case(suite, "runs", 2 * RUN_S + kills * KILL_S);
    tcase_add_test(runs, killed_ranks_leave_no_trace);
    tcase_add_test(runs, killed_launchers_leave_nobody);
    return test_folder_close(suite_run(suite));
}
