/* A checkpoint comes back in every bit, is checked before it is believed, and is not taken for
 * another model's.
 *
 * For test_safetensors_torch.sh also: "--write KIND SEED RUN_DIR" saves a new network, and
 * "--copy KIND FILE RUN_DIR" loads a file's parameters and saves them again.
 */
#include "model/checkpoint.h"
#include "model/safetensors.h"
#include "tests/model/scratch.h"
#include "tests/model/trainee.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

START_TEST(round_trip)
{
    save(938);
    expect_newest(938);
    ck_assert(file_exists(in_scratch("checkpoints/00000938/state.json")));
    trainee other;
    trainee_init(&other, MODEL_MLP, OPTIMIZER_ADAM, 2);
    ck_assert_int_eq(checkpoint_load_model(scratch, other.net, NULL), STATUS_OK);
    size_t size_bytes = sizeof(float) * network_count(mlp.net);
    ck_assert(memcmp(network_parameters(other.net), network_parameters(mlp.net), size_bytes) == 0);
    trainee_close(&other);
}
END_TEST

/* Every optimizer's state has its place, for every model, and the file says which that is; what a
 * device with weights in an order of its own saves, another one can load. */
START_TEST(round_trip_of_every_optimizer)
{
    trainee from = {0}, to = {0};
    model_kind kind = (model_kind)(_i % MODEL_COUNT), in_file = MODEL_MLP;
    optimizer_kind trained_by = (optimizer_kind)(_i / MODEL_COUNT);
    char path[FILE_PATH_BYTES];
    bool found = false;
    checkpoint_state state = state_of(5);
    state.model = kind;
    state.optimizer = trained_by;
    ck_assert_int_eq(trainee_open(&from, "cpu", kind, trained_by, 1), STATUS_OK);
    stamp(&from, 5, false);
    ck_assert_msg(checkpoint_save(scratch, &state, from.net, from.opt, NULL) == STATUS_OK, "%s",
                  status_text());
    trainee_init(&to, kind, trained_by, 2);
    ck_assert_int_eq(checkpoint_find(scratch, CHECKPOINT_NEWEST, &found, &state, path), STATUS_OK);
    ck_assert(found && state.model == kind && state.optimizer == trained_by);
    ck_assert_int_eq(checkpoint_load(path, to.net, to.opt, NULL), STATUS_OK);
    ck_assert(stamp(&to, 5, true));
    ck_assert_int_eq(checkpoint_model_kind(scratch, &in_file), STATUS_OK);
    ck_assert_int_eq(in_file, kind);
    trainee_close(&to);
    trainee_close(&from);
}
END_TEST

START_TEST(keeps_the_last_two)
{
    for (int64_t step = 10; step <= 40; step += 10)
        save(step);
    ck_assert_int_eq(count_names(), 2);
    ck_assert(file_exists(in_scratch("checkpoints/00000030")));
    expect_newest(40);
    /* A step in nine digits comes after one in eight. */
    save(123456789);
    ck_assert_int_eq(count_names(), 2);
    expect_newest(123456789);
}
END_TEST

static void save_keeping(int64_t step, int64_t saved_step, int64_t keep)
{
    checkpoint_state state = state_of(step);
    state.saved_step = saved_step;
    state.keep = keep;
    stamp(&mlp, step, false);
    ck_assert_int_eq(checkpoint_save(scratch, &state, mlp.net, mlp.opt, NULL), STATUS_OK);
}

START_TEST(keeps_as_many_as_asked)
{
    for (int64_t step = 10; step <= 60; step += 10)
        save_keeping(step, step - 10, 4);
    save_keeping(60, 60, 4); /* the last step's, and the last epoch's */
    ck_assert_int_eq(count_names(), 4);
    ck_assert(file_exists(in_scratch("checkpoints/00000030")));
    /* A run that went on from 40 keeps it, and of the others the newest. */
    save_keeping(70, 40, 3);
    ck_assert_int_eq(count_names(), 3);
    ck_assert(file_exists(in_scratch("checkpoints/00000040")));
    ck_assert(file_exists(in_scratch("checkpoints/00000060")));
    save_keeping(80, 70, 1);
    ck_assert_int_eq(count_names(), 1);
    expect_newest(80);
}
END_TEST

/* Whatever is kept, a folder with a name that no save gives is not the program's to delete. */
START_TEST(keeps_what_others_have_named)
{
    static const char *const names[] = {"checkpoints/00000010-mine", "checkpoints/mine",
                                        "checkpoints/10", "checkpoints/000000010"};
    enum { N = sizeof names / sizeof names[0] };
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(file_make_folders(in_scratch(names[i])), STATUS_OK);
    for (int64_t step = 20; step <= 40; step += 10)
        save_keeping(step, step - 10, 1);
    for (int i = 0; i < N; i++)
        ck_assert_msg(file_exists(in_scratch(names[i])), "%s is gone", names[i]);
    ck_assert_int_eq(count_names(), N + 1);
}
END_TEST

START_TEST(same_step_again)
{
    save(7);
    checkpoint_state state = state_of(7);
    stamp(&mlp, 6, false);
    ck_assert_int_eq(checkpoint_save(scratch, &state, mlp.net, mlp.opt, NULL), STATUS_OK);
    ck_assert_int_eq(count_names(), 1);
    stamp(&mlp, 0, false);
    ck_assert_int_eq(checkpoint_load(in_scratch("checkpoints/00000007"), mlp.net, mlp.opt, NULL),
                     STATUS_OK);
    ck_assert(stamp(&mlp, 6, true));
}
END_TEST

/* What a killed writer leaves is neither found nor in the way. */
START_TEST(leftovers)
{
    ck_assert_int_eq(file_make_folders(in_scratch("checkpoints/00000003.tmp")), STATUS_OK);
    ck_assert_int_eq(file_write(in_scratch("checkpoints/00000003.tmp/state.json"), NULL, 0),
                     STATUS_OK);
    ck_assert_int_eq(file_make_folders(in_scratch("checkpoints/00000001.99.tmp")), STATUS_OK);
    bool found = true;
    checkpoint_state state = {0};
    char path[FILE_PATH_BYTES];
    ck_assert_int_eq(checkpoint_find(scratch, CHECKPOINT_NEWEST, &found, &state, path), STATUS_OK);
    ck_assert(!found);
    save(3);
    ck_assert_int_eq(count_names(), 1);
    expect_newest(3);
}
END_TEST

/* Names that are like those of leftovers, and that nobody here has given. */
START_TEST(what_others_put_there_stays)
{
    static const char *const names[] = {"checkpoints/00000010.backup.tmp",
                                        "checkpoints/00000010.100.tmp",
                                        "checkpoints/00000010.0.tmp",
                                        "checkpoints/00000010.01.tmp",
                                        "checkpoints/00000010.1.tmp.tmp",
                                        "checkpoints/000000010.tmp",
                                        "checkpoints/10.tmp",
                                        "checkpoints/ 0000010.tmp",
                                        "checkpoints/-0000010.tmp",
                                        "checkpoints/tmp"};
    enum { N = sizeof names / sizeof names[0] };
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(file_make_folders(in_scratch(names[i])), STATUS_OK);
    save(10);
    save(10);
    for (int i = 0; i < N; i++)
        ck_assert_msg(file_exists(in_scratch(names[i])), "%s is gone", names[i]);
    expect_newest(10);
}
END_TEST

/* What cannot be deleted is in nobody's way: not that of the next save, of any later one, of one
 * that is replaced, nor of one that is due to be deleted. */
START_TEST(leftovers_that_stay)
{
    static const char *const stay[] = {"3.tmp/stray", "4.tmp/stray", "2.tmp/stray", "2.1.tmp/stray",
                                       "3.9.tmp/stray"};
    char name[64];
    enum { N = sizeof stay / sizeof stay[0] };
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "checkpoints/0000000%s", stay[i]);
        ck_assert_int_eq(file_make_folders(in_scratch(name)), STATUS_OK);
    }
    ck_assert_int_eq(file_write(in_scratch("checkpoints/00000005.tmp"), NULL, 0), STATUS_OK);
    for (int64_t step = 2; step <= 6; step++) {
        save(step);
        save(step);
        expect_newest(step);
        ck_assert_int_eq(checkpoint_check_published(scratch, step), STATUS_OK);
    }
    ck_assert_int_eq(count_names(), N + 1 + 2);
}
END_TEST

/* What somebody writes into the published file does not reach the checkpoint, and is seen. */
START_TEST(the_published_model_is_a_copy)
{
    save(1);
    save(2);
    char path[FILE_PATH_BYTES];
    bool published = false;
    strcpy(path, in_scratch("checkpoints/00000002"));
    ck_assert_int_eq(checkpoint_is_published(scratch, path, &published), STATUS_OK);
    ck_assert(published);
    ck_assert_int_eq(checkpoint_check_published(scratch, 2), STATUS_OK);
    ck_assert_int_eq(checkpoint_check_published(scratch, 1), STATUS_INVALID);
    char *old = NULL;
    size_t size = 0;
    ck_assert_int_eq(
        file_read(in_scratch("checkpoints/00000001/model.safetensors"), 1 << 30, &old, &size),
        STATUS_OK);
    int fd = open(in_scratch("model.safetensors"), O_WRONLY | O_TRUNC); /* as cp does it */
    ck_assert_int_eq(file_append(fd, "model", old, size), STATUS_OK);
    close(fd);
    free(old);
    ck_assert_int_eq(checkpoint_is_published(scratch, path, &published), STATUS_OK);
    ck_assert(!published);
    ck_assert_int_eq(checkpoint_check_published(scratch, 2), STATUS_INVALID);
    expect_newest(2);
    ck_assert_int_eq(checkpoint_publish(scratch, path), STATUS_OK);
    ck_assert_int_eq(checkpoint_check_published(scratch, 2), STATUS_OK);
    /* A run that went on from an older one does not mind the newer one that it passed over. */
    ck_assert_int_eq(checkpoint_publish(scratch, in_scratch("checkpoints/00000001")), STATUS_OK);
    ck_assert_int_eq(checkpoint_check_published(scratch, 1), STATUS_OK);
}
END_TEST

/* Where the model cannot be published, checkpoints come and go as ever. */
START_TEST(a_model_that_cannot_be_published)
{
    ck_assert_int_eq(file_make_folders(in_scratch("model.safetensors/taken")), STATUS_OK);
    for (int64_t step = 1; step <= 4; step++) {
        checkpoint_state state = state_of(step);
        stamp(&mlp, step, false);
        ck_assert_int_eq(checkpoint_save(scratch, &state, mlp.net, mlp.opt, NULL), STATUS_IO);
        ASSERT_FACTS(status_text(), "model.safetensors");
        ck_assert_int_eq(checkpoint_check_published(scratch, step), STATUS_INVALID);
        expect_newest(step);
    }
    ck_assert_int_eq(count_names(), 2);
}
END_TEST

START_TEST(nothing_there)
{
    bool found = true;
    checkpoint_state state = {0};
    char path[FILE_PATH_BYTES];
    ck_assert_int_eq(checkpoint_find(in_scratch("absent"), CHECKPOINT_NEWEST, &found, &state, path),
                     STATUS_OK);
    ck_assert(!found);
    ck_assert_int_eq(checkpoint_load_model(in_scratch("absent"), mlp.net, NULL), STATUS_IO);
    ASSERT_FACTS(status_text(), "absent");
}
END_TEST

/* Cuts a file to `size` bytes, or flips the byte there. */
static void damage(const char *name, size_t at, bool cut)
{
    const char *path = in_scratch(name);
    if (cut) {
        ck_assert_int_eq(truncate(path, (off_t)at), 0);
        return;
    }
    uint8_t byte = 0;
    int fd = open(path, O_RDWR);
    ck_assert_int_eq(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 1;
    ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

/* The run went on from 10, past a broken 20: that one is the first to go. */
START_TEST(keeps_the_good_one)
{
    checkpoint_state state = state_of(25);
    save(10);
    save(20);
    damage("checkpoints/00000020/optimizer.safetensors", 2000000, false);
    state.saved_step = 10;
    stamp(&mlp, 25, false);
    ck_assert_int_eq(checkpoint_save(scratch, &state, mlp.net, mlp.opt, NULL), STATUS_OK);
    ck_assert_int_eq(count_names(), 2);
    expect_newest(25);
    damage("checkpoints/00000025/state.json", 30, true);
    expect_newest(10);
}
END_TEST

static const struct {
    const char *file;
    size_t at;
    bool cut;
} DAMAGES[] = {
    {"checkpoints/00000002/model.safetensors", 0, true},
    {"checkpoints/00000002/model.safetensors", 1000000, true},
    {"checkpoints/00000002/model.safetensors", 2000000, false},
    {"checkpoints/00000002/model.safetensors", 3, false},
    {"checkpoints/00000002/optimizer.safetensors", 0, true},
    {"checkpoints/00000002/optimizer.safetensors", 2000000, false},
    {"checkpoints/00000002/state.json", 0, true},
    {"checkpoints/00000002/state.json", 30, true},
    {"checkpoints/00000002/state.json", 0, false},
};
enum { N_DAMAGES = sizeof DAMAGES / sizeof DAMAGES[0] };

START_TEST(broken_newest_falls_back)
{
    save(1);
    save(2);
    damage(DAMAGES[_i].file, DAMAGES[_i].at, DAMAGES[_i].cut);
    expect_newest(1);
    stamp(&mlp, 9, false);
    ck_assert_int_eq(checkpoint_load(in_scratch("checkpoints/00000002"), mlp.net, mlp.opt, NULL),
                     STATUS_INVALID);
    ASSERT_FACTS(status_text(), "00000002/");
    ck_assert(stamp(&mlp, 9, true));
    /* With nothing to fall back on, the run must not start anew unasked. */
    damage("checkpoints/00000001/state.json", 0, true);
    bool found = false;
    checkpoint_state state = {0};
    char path[FILE_PATH_BYTES];
    ck_assert_int_eq(checkpoint_find(scratch, CHECKPOINT_NEWEST, &found, &state, path),
                     STATUS_INVALID);
    ASSERT_FACTS(status_text(), "2 checkpoints");
}
END_TEST

START_TEST(missing_file_falls_back)
{
    save(1);
    save(2);
    ck_assert_int_eq(unlink(in_scratch("checkpoints/00000002/optimizer.safetensors")), 0);
    expect_newest(1);
}
END_TEST

START_TEST(wrong_model_or_optimizer)
{
    trainee cnn, adam;
    trainee_init(&cnn, MODEL_CNN, OPTIMIZER_SGD, 1);
    trainee_init(&adam, MODEL_MLP, OPTIMIZER_ADAM, 1);
    save(1);
    stamp(&cnn, 4, false);
    stamp(&adam, 4, false);
    ck_assert_int_eq(checkpoint_load_model(scratch, cnn.net, NULL), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "mlp", "conv1.weight");
    const char *path = in_scratch("checkpoints/00000001");
    ck_assert_int_eq(checkpoint_load(path, cnn.net, cnn.opt, NULL), STATUS_INVALID);
    ck_assert_int_eq(checkpoint_load(path, adam.net, adam.opt, NULL), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "exp_avg.fc1.weight");
    ck_assert(stamp(&cnn, 4, true));
    ck_assert(stamp(&adam, 4, true));
    trainee_close(&cnn);
    trainee_close(&adam);
}
END_TEST

START_TEST(foreign_files)
{
    const float x[4] = {1, 2, 3, 4};
    safetensors_tensor lone = {.name = "w", .rank = 1, .shape = {4}, .data = x};
    model_kind kind = MODEL_MLP;
    ck_assert_int_eq(safetensors_write(in_scratch("odd"), &lone, 1, NULL, 0, NULL), STATUS_OK);
    ck_assert_int_eq(checkpoint_model_kind(in_scratch("odd"), &kind), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "odd", "mlp", "cnn");
    ck_assert_int_eq(checkpoint_load_model(in_scratch("odd"), mlp.net, NULL), STATUS_INVALID);

    /* The mlp's tensors and one more. */
    const parameter *layout = NULL;
    size_t n = network_layout(mlp.net, &layout);
    safetensors_tensor tensors[NETWORK_MAX_PARAMETERS + 1];
    for (size_t i = 0; i < n; i++) {
        tensors[i] = (safetensors_tensor){
            .name = layout[i].name, .rank = layout[i].rank, .data = network_parameters(mlp.net)};
        memcpy(tensors[i].shape, layout[i].shape, sizeof layout[i].shape);
    }
    tensors[n] = lone;
    ck_assert_int_eq(safetensors_write(in_scratch("more"), tensors, n + 1, NULL, 0, NULL),
                     STATUS_OK);
    ck_assert_int_eq(checkpoint_load_model(in_scratch("more"), mlp.net, NULL), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "more", "tensor", "w");
}
END_TEST

/* The two jobs for the script; exit code. */
static int serve(char **args)
{
    trainee t = {0};
    model_kind kind = MODEL_MLP;
    bool copy = strcmp(args[0], "--copy") == 0;
    if (model_kind_parse(args[1], &kind) != STATUS_OK)
        return EXIT_FAILURE;
    checkpoint_state state = state_of(1);
    state.model = kind;
    state.optimizer = OPTIMIZER_ADADELTA;
    status st = trainee_open(&t, "reference", kind, OPTIMIZER_ADADELTA,
                             copy ? 0 : strtoull(args[2], NULL, 10));
    if (st == STATUS_OK && copy)
        st = checkpoint_load_model(args[2], t.net, NULL);
    if (st == STATUS_OK)
        st = checkpoint_save(args[3], &state, t.net, t.opt, NULL);
    if (st != STATUS_OK)
        fprintf(stderr, "%s\n", status_text());
    trainee_close(&t);
    return st == STATUS_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    if (argc == 5)
        return serve(argv + 1);
    Suite *suite = suite_create("checkpoint");
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_checked_fixture(core, setup, teardown);
    tcase_add_test(core, round_trip);
    tcase_add_loop_test(core, round_trip_of_every_optimizer, 0, MODEL_COUNT * 3);
    tcase_add_test(core, keeps_the_last_two);
    tcase_add_test(core, keeps_the_good_one);
    tcase_add_test(core, keeps_as_many_as_asked);
    tcase_add_test(core, keeps_what_others_have_named);
    tcase_add_test(core, same_step_again);
    tcase_add_test(core, leftovers);
    tcase_add_test(core, what_others_put_there_stays);
    tcase_add_test(core, leftovers_that_stay);
    tcase_add_test(core, the_published_model_is_a_copy);
    tcase_add_test(core, a_model_that_cannot_be_published);
    tcase_add_test(core, nothing_there);
    tcase_add_loop_test(core, broken_newest_falls_back, 0, N_DAMAGES);
    tcase_add_test(core, missing_file_falls_back);
    tcase_add_test(core, wrong_model_or_optimizer);
    tcase_add_test(core, foreign_files);
    return suite_run(suite);
}
