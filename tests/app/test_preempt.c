/* Asked to stop: all ranks end at one step, and going on from there ends with the bits of a run
 * that was never asked. */
#include "app/train/preempt.h"
#include "base/clock.h"
#include "base/file.h"
#include "dist/net/socket.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"
#include "tests/support/fake_accelerator.h"
#include "tests/support/full_pipe.h"
#include "tests/support/port.h"
#include "tests/support/process.h"

#include <math.h>
#include <signal.h>
#include <unistd.h>

/* 15 steps an epoch on two ranks. */
#define STOPPABLE \
    "train", "--model", "mlp", "--optimizer", "adam", "--lr", "0.01", "--limit", "240", \
        "--batch-size", "8", "--threads", "1", "--log-interval", "1"

/* One rank's part of a step on a device that does things late. */
typedef struct fake_rank {
    device *dev;
    float gradients_end[1];
    preempt stop;
} fake_rank;

static void fake_open(fake_rank *r)
{
    *r = (fake_rank){.dev = NULL};
    ck_assert_int_eq(fake_accelerator_open(0, &r->dev), STATUS_OK);
    ck_assert_int_eq(preempt_open(r->dev, r->gradients_end, r->gradients_end, &r->stop), STATUS_OK);
}

static void fake_step(fake_rank *r, float wish, preempt_when when)
{
    /* The wish comes in order with the rest, as begin_step has it. */
    ck_assert_int_eq(fake_accelerator_fill(r->dev, r->stop.flag, 1, wish), STATUS_OK);
    ck_assert_int_eq(preempt_look(&r->stop, when), STATUS_OK);
}

static void fake_close(fake_rank *r)
{
    preempt_close(&r->stop);
    ck_assert_int_eq(fake_accelerator_strays(r->dev), 0);
    fake_accelerator_close(r->dev);
}

/* Whenever the wish comes: within two copies, and at a step that depends on steps alone. */
START_TEST(an_accelerator_answers_within_two_copies)
{
    fake_rank r;
    int asked = _i, agreed = -1;
    fake_open(&r);
    for (int step = 0; step < 5 * PREEMPT_LAG && agreed < 0; step++) {
        fake_step(&r, step >= asked ? 1.0f : 0.0f, PREEMPT_CHEAPLY);
        if (r.stop.agreed)
            agreed = step;
    }
    ck_assert_int_ge(agreed, asked);
    ck_assert_int_le(agreed, asked + 2 * PREEMPT_LAG);
    ck_assert_int_eq(agreed % PREEMPT_LAG, 0);
    fake_close(&r);
}
END_TEST

/* NaN: the loss of some rank is not finite. It outweighs what others wish. */
START_TEST(a_loss_that_is_not_finite_is_told_apart)
{
    fake_rank r;
    fake_open(&r);
    fake_step(&r, 1, PREEMPT_NOW);
    ck_assert(r.stop.agreed && !r.stop.diverged);
    fake_close(&r);
    fake_open(&r);
    fake_step(&r, NAN, PREEMPT_NOW);
    ck_assert(r.stop.agreed && r.stop.diverged);
    fake_close(&r);
}
END_TEST

START_TEST(an_epochs_end_asks_at_once)
{
    fake_rank r;
    fake_open(&r);
    for (int step = 0; step < 3; step++)
        fake_step(&r, 0, PREEMPT_CHEAPLY);
    fake_step(&r, 0, PREEMPT_NOW);
    ck_assert(!r.stop.agreed);
    fake_step(&r, 0, PREEMPT_CHEAPLY);
    fake_step(&r, 1, PREEMPT_NOW);
    ck_assert(r.stop.agreed);
    fake_close(&r);
}
END_TEST

START_TEST(a_signal_becomes_a_wish)
{
    rank_signals listener;
    ck_assert_int_eq(rank_signals_start(&listener), STATUS_OK);
    ck_assert_int_eq(rank_signals_asked(&listener), 0);
    rank_signals_train(&listener);
    static const int numbers[] = {SIGUSR1, SIGUSR1, SIGTERM}; /* SIGUSR1 as often as one likes */
    for (int i = 0; i < 3; i++) {
        kill(getpid(), numbers[i]);
        int64_t deadline_ns = clock_deadline_ns(5000);
        while (rank_signals_asked(&listener) != numbers[i] && !clock_passed(deadline_ns))
            clock_sleep_ms(1);
        ck_assert_int_eq(rank_signals_asked(&listener), numbers[i]);
    }
    rank_signals_stop(&listener);
    rank_signals_stop(&listener);
}
END_TEST

/* How a run of several ranks is asked, and where. */
typedef struct way {
    const char *ranks;
    int signal, rank; /* rank -1: the launcher, or the only process */
} way;

static const way shm_ways[] = {
    {"1", SIGTERM, -1}, {"1", SIGUSR1, -1}, {"2", SIGUSR1, 1}, {"2", SIGTERM, 1},
    {"3", SIGTERM, -1}, {"1", SIGINT, -1},  {"3", SIGHUP, -1},
};
static const way gloo_ways[] = {{"2", SIGUSR1, 0}, {"3", SIGUSR1, -1}};
enum {
    N_SHM_WAYS = sizeof shm_ways / sizeof shm_ways[0],
    N_GLOO_WAYS = sizeof gloo_ways / sizeof gloo_ways[0],
};

START_TEST(a_stopped_run_ends_with_the_same_bits)
{
    const way *w = training_is_on_gloo() ? &gloo_ways[_i] : &shm_ways[_i];
    program p =
        program_start_with(NULL, WORDS(STOPPABLE, "--backend", training_backend, "--nproc-per-node",
                                       w->ranks, "--epochs", "100000", "--save-every", "1000epochs",
                                       "--json", "--run-dir", "stopped"));
    program_await(&p, "epoch 3/");
    kill(w->rank < 0 ? p.pid : process_of_rank(p.pid, w->rank), w->signal);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 75);
    int epoch = facts_number(p.err, "stopped", "epoch");
    ck_assert_int_ge(epoch, 2);
    ck_assert_int_ge(facts_number(p.err, "stopped", "step"), 1);
    const char *epochs = program_flag("--epochs=", epoch + 2);
    program rest = program_run_with(NULL, WORDS(STOPPABLE, "--backend", training_backend,
                                                "--nproc-per-node", w->ranks, epochs, "--json",
                                                "--resume=auto", "--run-dir", "stopped"));
    ASSERT_EXIT(rest, 0);
    ASSERT_FACTS(rest.err, "resuming", program_flag("epoch ", epoch));
    program whole =
        program_run_with(NULL, WORDS(STOPPABLE, "--backend", training_backend, "--nproc-per-node",
                                     w->ranks, epochs, "--json", "--run-dir", "whole"));
    ASSERT_EXIT(whole, 0);
    model_file_assert_same_bits("stopped", "whole");
    program_close(&p);
    program_close(&rest);
    program_close(&whole);
}
END_TEST

START_TEST(without_saving_it_still_stops)
{
    program p = program_start_with(NULL, WORDS(STOPPABLE, "--epochs", "100000", "--no-save-model",
                                               "--json", "--run-dir", "stopped"));
    program_await(&p, "epoch 2/");
    kill(p.pid, SIGUSR1);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 75);
    ASSERT_FACTS(p.err, "--no-save-model");
    ASSERT_NO_FACTS(p.err, "--resume=auto");
    program_close(&p);
}
END_TEST

/* A step takes 20 s here: nobody waits for it. */
static program start_slow_step(const char *const *before)
{
    program p =
        program_start_with(before, WORDS(STOPPABLE, "--epochs", "1", "--json", "--inject",
                                         "delay:rank=0,step=3,ms=20000", "--run-dir", "stopped"));
    program_await(&p, "injected", "20000 ms");
    return p;
}

START_TEST(a_second_sigterm_ends_it_at_once)
{
    program p = start_slow_step(NULL);
    int64_t start_ns = clock_now_ns();
    kill(p.pid, SIGTERM);
    process_await_taken(p.pid, SIGTERM);
    clock_sleep_ms(200); /* else they are one */
    ck_assert(!process_is_gone(p.pid));
    kill(p.pid, SIGTERM);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 128 + SIGTERM);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5);
    program_close(&p);
}
END_TEST

/* Its reader, a pager for one, takes nothing: the rank waits for it, but not if it is to stop. */
START_TEST(a_full_stdout_stops_no_rank)
{
    full_pipe pager;
    full_pipe_open(&pager);
    program p = full_pipe_start(
        &pager, STDOUT_FILENO,
        WORDS(program_mnist_ddp(), STOPPABLE, "--epochs", "100000", "--run-dir", "stopped"));
    test_folder_await("stopped");
    clock_sleep_ms(300); /* the first line waits */
    ck_assert(!process_is_gone(p.pid));
    int64_t start_ns = clock_now_ns();
    kill(p.pid, SIGTERM);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 75);
    ASSERT_FACTS(p.err, "stopped after");
    ASSERT_FACTS(p.err, "mnist_ddp --run-dir stopped --resume");
    ASSERT_FACTS(p.err, "progress", "not shown");
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 10);
    program_close(&p);
    full_pipe_close(&pager);
}
END_TEST

/* Signals that are caught anywhere would be caught in a kernel: see app/train/preempt.h. */
START_TEST(no_handler_interrupts_a_rank)
{
    static const int asynchronous[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT,  SIGHUP,
                                       SIGQUIT, SIGALRM, SIGPROF, SIGCHLD, SIGPIPE};
    char text[4096];
    unsigned long long caught = 0;
    program p = start_slow_step(NULL);
    process_read(p.pid, "status", text, sizeof text);
    const char *line = strstr(text, "SigCgt:");
    ck_assert(line != NULL && sscanf(line, "SigCgt: %llx", &caught) == 1);
    for (size_t i = 0; i < sizeof asynchronous / sizeof asynchronous[0]; i++)
        ck_assert_msg((caught >> (asynchronous[i] - 1) & 1) == 0, "SIG%s has a handler",
                      sigabbrev_np(asynchronous[i]));
    kill(p.pid, SIGKILL);
    program_wait(&p, RUN_S);
    program_close(&p);
}
END_TEST

/* It asks with SIGUSR1: its SIGTERM is meant. That of others is not. */
START_TEST(the_launchers_sigterm_ends_it_at_once)
{
    program p = start_slow_step(WORDS("env", "MNIST_DDP_LAUNCHED=1"));
    int64_t start_ns = clock_now_ns();
    kill(p.pid, SIGTERM);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 128 + SIGTERM);
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 5);
    program_close(&p);
}
END_TEST

/* Ranks 0 and 1 of three, as each launcher starts them: @ is the rank, # the port. */
#define TRAIN " mnist_ddp train --model mlp --epochs 1 --run-dir stopped"

typedef struct waiting {
    const char *line;
    int victim, signal;
} waiting;

#define HAND "env RANK=@ LOCAL_RANK=@ WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=#" TRAIN
#define TCP "env" TRAIN " --init-method tcp://127.0.0.1:# --rank @ --world-size 3"
#define BY_FILE "env" TRAIN " --init-method file:///proc/self/cwd/meet# --rank @ --world-size 3"
#define SRUN \
    "env SLURM_JOB_ID=# SLURM_STEP_ID=0 SLURM_PROCID=@ SLURM_STEP_NUM_TASKS=3 SLURM_LOCALID=@ " \
    "SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=3 SLURM_STEP_NODELIST=localhost MASTER_PORT=#" TRAIN
#define MPIRUN \
    "env OMPI_COMM_WORLD_RANK=@ OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=@ " \
    "OMPI_COMM_WORLD_LOCAL_SIZE=3 PMIX_NAMESPACE=# MASTER_PORT=#" TRAIN
#define POD \
    "env KUBERNETES_SERVICE_HOST=10.0.0.1 RANK=@ WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 " \
    "MASTER_PORT=#" TRAIN

static const waiting WAITING[] = {{HAND, 0, SIGINT},  {HAND, 1, SIGTERM},   {TCP, 0, SIGTERM},
                                  {TCP, 1, SIGHUP},   {BY_FILE, 0, SIGHUP}, {BY_FILE, 1, SIGINT},
                                  {SRUN, 1, SIGTERM}, {MPIRUN, 0, SIGTERM}, {POD, 0, SIGTERM}};
enum { N_WAITING = sizeof WAITING / sizeof WAITING[0] };

static program start_waiting(const char *line_of, int rank, int port)
{
    const char *words[MAX_WORDS] = {NULL};
    char *line = NULL, *next = NULL;
    size_t size_bytes, n = 0;
    FILE *out = open_memstream(&line, &size_bytes);
    for (const char *c = line_of; *c != '\0'; c++)
        if (*c == '@' || *c == '#')
            fprintf(out, "%d", *c == '@' ? rank : port);
        else
            fputc(*c, out);
    fclose(out);
    for (char *word = strtok_r(line, " ", &next); word != NULL; word = strtok_r(NULL, " ", &next))
        words[n++] = strcmp(word, "mnist_ddp") == 0 ? program_mnist_ddp() : word;
    program p = program_start(words);
    free(line);
    return p;
}

/* All wait for a third one, which never comes. */
START_TEST(one_that_waits_ends_at_once)
{
    program of[N_WAITING][2];
    int ports[N_WAITING];
    char name[16];
    for (int i = 0; i < N_WAITING; i++) {
        ports[i] = port_find_free();
        for (int rank = 0; rank < 2; rank++)
            of[i][rank] = start_waiting(WAITING[i].line, rank, ports[i]);
    }
    for (int i = 0; i < N_WAITING; i++) {
        program_await(&of[i][0], "waiting for 1 of 3");
        kill(of[i][WAITING[i].victim].pid, WAITING[i].signal);
    }
    for (int i = 0; i < N_WAITING; i++) {
        const waiting *w = &WAITING[i];
        for (int rank = 0; rank < 2; rank++)
            program_wait(&of[i][rank], RUN_S);
        const program *victim = &of[i][w->victim], *other = &of[i][1 - w->victim];
        ASSERT_EXIT(*victim, 128 + w->signal);
        snprintf(name, sizeof name, "SIG%s", sigabbrev_np(w->signal));
        ASSERT_FACTS(victim->err, name, "stopped before the first step");
        snprintf(name, sizeof name, "rank %d", w->victim);
        ASSERT_EXIT(*other, 72);
        ASSERT_FACTS(other->err, "error:", name, "gone");
        int fd = -1, port = 0;
        ck_assert_int_eq(socket_listen("127.0.0.1", ports[i], &fd, &port), STATUS_OK);
        close(fd);
        program_close(&of[i][0]);
        program_close(&of[i][1]);
    }
    ck_assert(!file_exists("stopped"));
}
END_TEST

/* The signal that its launcher passes on, though it ignores the terminal's. */
START_TEST(our_launchers_wish_ends_one_that_waits)
{
    int port = port_find_free();
    program p = start_waiting("env --ignore-signal=INT MNIST_DDP_LAUNCHED=1 RANK=@ LOCAL_RANK=@ "
                              "WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=#" TRAIN,
                              0, port);
    program_await(&p, "waiting for 1 of 2");
    ck_assert_int_eq(sigqueue(p.pid, SIGUSR1, (union sigval){.sival_int = SIGINT}), 0);
    program_wait(&p, 10);
    ASSERT_EXIT(p, 128 + SIGINT);
    program_close(&p);
}
END_TEST

START_TEST(run_ends_one_that_waits)
{
    program p = start_waiting("mnist_ddp run --no-python env WORLD_SIZE=2" TRAIN, 0, 0);
    program_await(&p, "waiting for 1 of 2");
    kill(p.pid, SIGHUP);
    program_wait(&p, 10);
    ASSERT_EXIT(p, 128 + SIGHUP);
    program_close(&p);
}
END_TEST

static void add_other_tests(Suite *suite, TCase *runs)
{
    TCase *waits = suite_case(suite, "waits", RUN_S);
    tcase_add_checked_fixture(waits, test_folder_clean, NULL);
    tcase_add_test(waits, one_that_waits_ends_at_once);
    tcase_add_test(waits, our_launchers_wish_ends_one_that_waits);
    tcase_add_test(waits, run_ends_one_that_waits);
    TCase *flag = suite_case(suite, "flag", 10);
    tcase_add_loop_test(flag, an_accelerator_answers_within_two_copies, 0, 2 * PREEMPT_LAG);
    tcase_add_test(flag, an_epochs_end_asks_at_once);
    tcase_add_test(flag, a_loss_that_is_not_finite_is_told_apart);
    tcase_add_test(flag, a_signal_becomes_a_wish);
    tcase_add_test(runs, without_saving_it_still_stops);
    tcase_add_test(runs, no_handler_interrupts_a_rank);
    tcase_add_test(runs, a_full_stdout_stops_no_rank);
    tcase_add_test(runs, a_second_sigterm_ends_it_at_once);
    tcase_add_test(runs, the_launchers_sigterm_ends_it_at_once);
}

/* With --backend=gloo: what that backend has a part in. */
int main(int argc, char **argv)
{
    if (!training_choose_backend(argc, argv))
        return TEST_SKIPPED;
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("preempt");
    TCase *runs = suite_case(suite, "runs", 2.5 * RUN_S);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_loop_test(runs, a_stopped_run_ends_with_the_same_bits, 0,
                        training_is_on_gloo() ? N_GLOO_WAYS : N_SHM_WAYS);
    if (!training_is_on_gloo())
        add_other_tests(suite, runs);
    return test_folder_close(suite_run(suite));
}
