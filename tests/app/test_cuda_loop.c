/* What the training loop hears from the cuda device while that goes on: losses for the log, and
 * whether all ranks stop. On the emulated device, or with MNIST_DDP_TEST_DEVICE=real that of the
 * machine. */
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"
#include "tests/support/cuda.h"
#include "tests/support/facts.h"

#define CUDA "--device", "cuda"

/* The line "epoch 1/2 step 3/6 loss 2.1" at *text, or the first behind it; then moves there. */
static bool next_line(const char **text, int *epoch, int *step, double *loss)
{
    for (; (*text = strstr(*text, "epoch ")) != NULL; *text += 1)
        if (sscanf(*text, "epoch %d/%*d step %d/%*d loss %lf", epoch, step, loss) == 3) {
            *text += 1;
            return true;
        }
    return false;
}

/* An accelerator's losses come late, but at their lines: those of the CPU, in order, each epoch's
 * before the epoch's own line. */
START_TEST(the_log_says_what_the_cpus_says)
{
    const char *devices[] = {"cuda", "cpu"};
    program runs[2];
    for (int d = 0; d < 2; d++) {
        runs[d] = program_mnist("--model", "mlp", TRAINING_SGD, "--threads", "1", "--device",
                                devices[d], "--epochs", "2", "--limit", "80", "--batch-size", "8",
                                "--log-interval", "3", "--log-format", "plain", "--no-save-model",
                                "--run-dir", test_folder_path("one"), "--no-resume", NULL);
        ASSERT_EXIT(runs[d], 0);
    }
    const char *cuda = runs[0].out, *cpu = runs[1].out;
    int epochs[2], steps[2], lines = 0;
    double losses[2];
    while (next_line(&cpu, &epochs[1], &steps[1], &losses[1])) {
        ck_assert(next_line(&cuda, &epochs[0], &steps[0], &losses[0]));
        ck_assert_int_eq(epochs[0], epochs[1]);
        ck_assert_int_eq(steps[0], steps[1]);
        ck_assert_double_eq_tol(losses[0], losses[1], 2e-4);
        lines++;
    }
    ck_assert_int_eq(lines, 8); /* steps 1, 4, 7 and 10 of two epochs */
    ck_assert(!next_line(&cuda, &epochs[0], &steps[0], &losses[0]));
    const char *end = strstr(runs[0].out, "train loss");
    ck_assert_ptr_nonnull(end);
    ck_assert(end > strstr(runs[0].out, "epoch 1/2 step 10/10"));
    ck_assert(end < strstr(runs[0].out, "epoch 2/2 step 1/10"));
    program_close(&runs[0]);
    program_close(&runs[1]);
}
END_TEST

/* The line of the last step that went well is on its way when the next one fails. */
START_TEST(a_failure_loses_no_line)
{
    setenv("MNIST_DDP_EMULATED_FAIL", "cudaGraphLaunch:4:2", 1); /* of step 5 */
    program p = program_mnist("--model", "mlp", TRAINING_SGD, CUDA, "--epochs", "1", "--limit",
                              "80", "--batch-size", "8", "--log-interval", "1", "--log-format",
                              "plain", "--run-dir", test_folder_path("one"), NULL);
    unsetenv("MNIST_DDP_EMULATED_FAIL");
    ASSERT_EXIT(p, 70);
    ASSERT_FACTS(p.err, "cudaGraphLaunch");
    ASSERT_FACTS(p.out, "step 4/10 loss");
    ASSERT_NO_FACTS(p.out, "step 5/10 loss");
    program_close(&p);
}
END_TEST

/* The wish to stop leaves with the gradients of a replayed graph, and goes on with the same bits.
 */
START_TEST(a_signal_stops_all_ranks)
{
    const char *ranks = _i == 0 ? "2" : "1";
#define STOPPABLE \
    "train", CUDA, "--model", "mlp", "--optimizer", "adam", "--lr", "0.01", "--limit", "240", \
        "--batch-size", "8", "--log-interval", "1", "--eval-every", "0", "--json", "--backend", \
        "nccl", "--nproc-per-node", ranks
    program p =
        program_start_with(NULL, WORDS(STOPPABLE, "--epochs", "100000", "--save-every",
                                       "1000epochs", "--run-dir", test_folder_path("many")));
    program_await(&p, "epoch 2/");
    kill(_i == 0 ? process_of_rank(p.pid, 1) : p.pid, SIGUSR1);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 75);
    int epoch = facts_number(p.err, "stopped", "epoch"); /* that it is in, or has just done */
    const char *epochs = program_flag("--epochs=", epoch + 2);
    program rest = program_run_with(
        NULL, WORDS(STOPPABLE, epochs, "--resume=auto", "--run-dir", test_folder_path("many")));
    ASSERT_EXIT(rest, 0);
    program whole =
        program_run_with(NULL, WORDS(STOPPABLE, epochs, "--run-dir", test_folder_path("one")));
    ASSERT_EXIT(whole, 0);
    model_file_assert_same_bits(test_folder_path("many"), test_folder_path("one"));
    program_close(&p);
    program_close(&rest);
    program_close(&whole);
}
END_TEST

/* The host hears of it some steps later; and with fp16 never: those steps are skipped, and the test
 * tells. */
START_TEST(a_loss_that_is_not_finite_ends_the_run)
{
    bool scaled = _i == 1;
    program p = program_mnist("--model", "mlp", "--optimizer", "sgd", "--lr", "10000", "--threads",
                              "1", CUDA, "--epochs", "3", "--limit", "480", "--batch-size", "8",
                              "--amp", scaled ? "fp16" : "off", "--json", "--run-dir",
                              test_folder_path("one"), NULL);
    ASSERT_EXIT(p, 76);
    ASSERT_FACTS(p.err, "error", scaled ? "test loss" : "training loss", "nan", "--lr", "epoch 1");
    int step = facts_number(p.err, "error", "step");
    ck_assert_msg(scaled ? step == 60 : step < 60, "%d", step);
    ASSERT_SAYS(p.out, "\"last_loss\":null");
    ck_assert(!file_exists(test_folder_path("one/model.safetensors")));
    program_close(&p);
}
END_TEST

int main(void)
{
    if (!cuda_choose())
        return TEST_SKIPPED;
    int gpus = cuda_gpus();
    test_folder_open();
    Suite *suite = suite_create("cuda_loop");
    TCase *core = suite_case(suite, "core", 240);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    tcase_add_test(core, the_log_says_what_the_cpus_says);
    suite_add(core, a_failure_loses_no_line, 0,
              cuda_is_real() ? "a real device cannot be told to fail" : NULL);
    suite_add(core, a_signal_stops_all_ranks, 0, gpus < 2 ? "two ranks need a GPU each" : NULL);
    suite_add(core, a_signal_stops_all_ranks, 1, NULL);
    tcase_add_loop_test(core, a_loss_that_is_not_finite_ends_the_run, 0, 2);
    return test_folder_close(suite_run(suite));
}
