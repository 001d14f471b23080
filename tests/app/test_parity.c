/* What a run computes does not depend on how it is spread: ranks, backends, threads, overlap and
 * interruptions. */
#include "model/model_kind.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"

typedef struct spread {
    const char *ranks, *batch, *global_batch;
} spread;

static const spread spreads[] = {
    {"2", "8", "16"},
    {"3", "8", "24"},
    {"4", "8", "32"},
};
enum { N_SPREADS = sizeof spreads / sizeof spreads[0] };

/* The ranks' batches together are one process's batch, image for image, dropout included. Their
 * sums are taken in another order: each gradient differs by some 1e-7 of its size (float32 rounds
 * at 6e-8), and a few steps with momentum 0.9 pile that up: 5e-5 of the largest weight bounds it
 * (1.6e-5 was seen, with the reference kernels' long sums), while one wrong image in one step moves
 * weights by 1e-3 and more. The runs are short because a rounding error that turns one ReLU or one
 * pooling window around grows from there: 3 to 6 steps here, and for a net with pools the norm is
 * compared.
 */
START_TEST(ranks_equal_one_process)
{
    const spread *s = &spreads[_i / MODEL_COUNT];
    const char *model = model_kind_names[_i % MODEL_COUNT];
    program many = program_mnist("--model", model, TRAINING_96, "--backend", training_backend,
                                 "--nproc-per-node", s->ranks, "--batch-size", s->batch,
                                 "--run-dir", test_folder_path("many"), NULL);
    ASSERT_EXIT(many, 0);
    program one = program_mnist("--model", model, TRAINING_96, "--batch-size", s->global_batch,
                                "--run-dir", test_folder_path("one"), NULL);
    ASSERT_EXIT(one, 0);
    double off = model_file_parity(model, test_folder_path("many"), test_folder_path("one"));
    ck_assert_msg(off < 5e-5, "%s, %s ranks on %s: weights differ by %g", model, s->ranks,
                  training_backend, off);
    ck_assert(training_number(many.out, "images_per_epoch") == 96);
    program_close(&many);
    program_close(&one);
}
END_TEST

START_TEST(same_command_same_bits)
{
    const char *model = model_kind_names[_i];
    const char *folders[] = {"many", "one"};
    for (int i = 0; i < 2; i++) {
        program p =
            program_mnist("--model", model, TRAINING_480, "--backend", training_backend,
                          "--nproc-per-node", "3", "--run-dir", test_folder_path(folders[i]), NULL);
        ASSERT_EXIT(p, 0);
        program_close(&p);
    }
    model_file_assert_same_bits(test_folder_path("many"), test_folder_path("one"));
}
END_TEST

START_TEST(threads_do_not_change_bits)
{
    const char *model = model_kind_names[_i];
    program one =
        program_mnist("--model", model, TRAINING_480, "--run-dir", test_folder_path("one"), NULL);
    ASSERT_EXIT(one, 0);
    program many = program_mnist("--model", model, TRAINING_480, "--threads", "3", "--run-dir",
                                 test_folder_path("many"), NULL);
    ASSERT_EXIT(many, 0);
    model_file_assert_same_bits(test_folder_path("many"), test_folder_path("one"));
    program_close(&one);
    program_close(&many);
}
END_TEST

/* With 5 ms on the wire per bucket, backward hides a part of them; the sums stay the same. */
START_TEST(overlap_hides_time_and_keeps_bits)
{
    program with =
        program_mnist("--model", "cnn", TRAINING_480, "--nproc-per-node", "2", "--inject-delay-ms",
                      "5", "--run-dir", test_folder_path("many"), NULL);
    ASSERT_EXIT(with, 0);
    program without = program_mnist("--model", "cnn", TRAINING_480, "--nproc-per-node", "2",
                                    "--no-overlap", "--run-dir", test_folder_path("one"), NULL);
    ASSERT_EXIT(without, 0);
    double comm = training_number(with.out, "comm"),
           exposed = training_number(with.out, "comm_exposed");
    ck_assert_msg(exposed < comm, "comm %g s, exposed %g s", comm, exposed);
    ck_assert_msg(comm > 0.005 * 4, "the injected delay is missing: comm %g s", comm);
    model_file_assert_same_bits(test_folder_path("many"), test_folder_path("one"));
    program_close(&with);
    program_close(&without);
}
END_TEST

START_TEST(resumed_run_ends_with_the_same_bits)
{
    const char *model = _i % 2 == 0 ? "mlp" : "cnn";
    const char *optimizers[] = {"sgd", "adam", "adadelta"};
    const char *optimizer = optimizers[_i / 2], *lr = _i / 2 == 0 ? "0.05" : "0.01";
    program whole = program_mnist("--model", model, "--optimizer", optimizer, "--lr", lr,
                                  "--epochs", "3", "--limit", "200", "--nproc-per-node", "2",
                                  "--run-dir", test_folder_path("one"), NULL);
    ASSERT_EXIT(whole, 0);
    for (int epochs = 1; epochs <= 3; epochs += 2) {
        program part = program_mnist("--model", model, "--optimizer", optimizer, "--lr", lr,
                                     "--limit", "200", "--nproc-per-node", "2", "--run-dir",
                                     test_folder_path("many"), "--epochs", epochs == 1 ? "1" : "3",
                                     epochs == 1 ? "--no-resume" : "--resume", NULL);
        ASSERT_EXIT(part, 0);
        program_close(&part);
    }
    model_file_assert_same_bits(test_folder_path("many"), test_folder_path("one"));
    program_close(&whole);
}
END_TEST

START_TEST(resume_refuses_another_run)
{
    static const char *const flags[][2] = {{"--seed", "9"},
                                           {"--batch-size", "16"},
                                           {"--model", "cnn"},
                                           {"--lr", "0.9"},
                                           {"--limit", "100"}};
    static const char *const words[] = {"--seed", "--batch-size", "mlp", "--lr", "--limit"};
    program first =
        program_mnist("--model", "mlp", TRAINING_480, "--run-dir", test_folder_path("one"), NULL);
    ASSERT_EXIT(first, 0);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        program p =
            program_mnist("--model", "mlp", TRAINING_480, "--run-dir", test_folder_path("one"),
                          "--epochs", "2", "--resume", flags[i][0], flags[i][1], NULL);
        ASSERT_EXIT(p, 64);
        ASSERT_FACTS(p.err, "error", "resume", words[i]);
        program_close(&p);
    }
    program again =
        program_mnist("--model", "mlp", TRAINING_480, "--run-dir", test_folder_path("one"), NULL);
    ASSERT_EXIT(again, 74);
    ASSERT_FACTS(again.err, "error", test_folder_path("one"), "--resume");
    program_close(&first);
    program_close(&again);
}
END_TEST

START_TEST(accumulation_equals_a_larger_batch)
{
    program parts =
        program_mnist("--model", "cnn", TRAINING_96, "--nproc-per-node", "2", "--accum", "3",
                      "--batch-size", "4", "--run-dir", test_folder_path("many"), NULL);
    ASSERT_EXIT(parts, 0);
    program whole =
        program_mnist("--model", "cnn", TRAINING_96, "--nproc-per-node", "2", "--global-batch-size",
                      "24", "--run-dir", test_folder_path("one"), NULL);
    ASSERT_EXIT(whole, 0);
    double off = model_file_difference(test_folder_path("many"), test_folder_path("one"));
    ck_assert_msg(off < 5e-5, "weights differ by %g", off);
    program_close(&parts);
    program_close(&whole);
}
END_TEST

/* With a learning rate of 0 all runs hold the same weights: then the counts must be the same. */
START_TEST(evaluation_is_exact_at_any_world_size)
{
    double want = 0;
    static const char *const ranks[] = {"1", "2", "3", "4", "7"};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        char name[32];
        snprintf(name, sizeof name, "eval-%s-%s", ranks[i], _i == 0 ? "mlp" : "cnn");
        program p = program_mnist("--model", _i == 0 ? "mlp" : "cnn", TRAINING_480, "--lr", "0",
                                  "--nproc-per-node", ranks[i], "--dry-run", "--run-dir",
                                  test_folder_path(name), NULL);
        ASSERT_EXIT(p, 0);
        double got = training_number(p.out, "test_acc") * TEST_FOLDER_TEST;
        if (i == 0)
            want = got;
        ck_assert_msg(fabs(got - want) < 1e-6, "%s ranks: %g right, want %g", ranks[i], got, want);
        program_close(&p);
    }
}
END_TEST

/* StepLR: after one epoch at gamma 1e-30 nothing moves any more. */
START_TEST(gamma_shrinks_the_learning_rate)
{
    program whole =
        program_mnist("--model", "mlp", TRAINING_96, "--gamma", "1e-30", "--momentum", "0",
                      "--epochs", "3", "--run-dir", test_folder_path("many"), NULL);
    ASSERT_EXIT(whole, 0);
    program one = program_mnist("--model", "mlp", TRAINING_96, "--gamma", "1e-30", "--momentum",
                                "0", "--run-dir", test_folder_path("one"), NULL);
    ASSERT_EXIT(one, 0);
    ck_assert(model_file_difference(test_folder_path("many"), test_folder_path("one")) < 1e-9);
    program_close(&whole);
    program_close(&one);
}
END_TEST

static void add_other_tests(TCase *runs)
{
    tcase_add_loop_test(runs, threads_do_not_change_bits, 0, MODEL_COUNT);
    tcase_add_test(runs, overlap_hides_time_and_keeps_bits);
    tcase_add_loop_test(runs, resumed_run_ends_with_the_same_bits, 0, 6);
    tcase_add_test(runs, resume_refuses_another_run);
    tcase_add_test(runs, gamma_shrinks_the_learning_rate);
    tcase_add_test(runs, accumulation_equals_a_larger_batch);
    tcase_add_loop_test(runs, evaluation_is_exact_at_any_world_size, 0, 2);
}

/* With --backend=gloo: what that backend has a part in. */
int main(int argc, char **argv)
{
    if (!training_choose_backend(argc, argv))
        return TEST_SKIPPED;
    test_folder_open();
    Suite *suite = suite_create("parity");
    TCase *runs = suite_case(suite, "runs", 120);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_loop_test(runs, ranks_equal_one_process, 0, MODEL_COUNT * N_SPREADS);
    tcase_add_loop_test(runs, same_command_same_bits, 0, MODEL_COUNT);
    if (!training_is_on_gloo())
        add_other_tests(runs);
    return test_folder_close(suite_run(suite));
}
