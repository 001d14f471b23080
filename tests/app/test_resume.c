/* Runs that go on in mid-epoch, and when checkpoints are written. */
#include "app/options/training_values.h"
#include "base/file.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"

#include <dirent.h>
#include <jansson.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const optimizers[][2] = {{"sgd", "0.05"}, {"adam", "0.01"}, {"adadelta", "1"}};

typedef struct cut {
    const char *model, *ranks, *backend;
    int optimizer;
} cut;

static const cut cuts[] = {
    {"mlp", "1", "shm", 0}, {"mlp", "1", "shm", 1}, {"mlp", "1", "shm", 2},
    {"mlp", "2", "shm", 0}, {"mlp", "2", "shm", 1}, {"mlp", "2", "shm", 2},
    {"cnn", "2", "shm", 2}, {"mlp", "3", "shm", 0}, {"mlp", "2", "gloo", 1}, /* the last */
};
enum { N_CUTS = sizeof cuts / sizeof cuts[0], GLOO_CUT = N_CUTS - 1 };

static program run_cut(const cut *c, const char *folder, const char *const *more)
{
    const char *const *o = optimizers[c->optimizer];
    const char *flags[MAX_WORDS] = {
        "train",     "--model",   c->model,   "--optimizer",    o[0],   "--lr",
        o[1],        "--epochs",  "2",        "--limit",        "230",  "--batch-size",
        "8",         "--accum",   "2",        "--threads",      "1",    "--nproc-per-node",
        c->ranks,    "--backend", c->backend, "--log-interval", "1000", "--json",
        "--run-dir", folder};
    int n = 0;
    while (flags[n] != NULL)
        n++;
    for (; *more != NULL; more++)
        flags[n++] = *more;
    return program_run_with(NULL, flags);
}

/* "train loss 1.2345" of an epoch. */
static double train_loss(const char *log, const char *epoch)
{
    const char *line = strstr(log, epoch);
    const char *loss = line != NULL ? strstr(line, "train loss ") : NULL;
    ck_assert_msg(loss != NULL, "no %s in: %s", epoch, log);
    return atof(loss + strlen("train loss "));
}

/* A rank is killed in the first epoch, and again in the second. */
START_TEST(killed_in_mid_epoch_and_resumed_has_the_same_bits)
{
    const cut *c = &cuts[_i];
    const char *last = c->ranks[0] == '1' ? "rank=0" : "rank=1";
    char kills[2][48];
    snprintf(kills[0], sizeof kills[0], "kill:%s,step=5", last);
    snprintf(kills[1], sizeof kills[1], "kill:rank=0,step=%d", c->ranks[0] == '1' ? 20 : 9);
    const char *second = c->ranks[0] == '1' ? "step 20" : "step 9";
    program whole = run_cut(c, "whole", ((const char *const[]){NULL}));
    ASSERT_EXIT(whole, 0);
    for (int i = 0; i < 2; i++) {
        program part = run_cut(
            c, "part", WORDS("--save-every", "2steps", "--resume=auto", "--inject", kills[i]));
        ASSERT_EXIT(part, 128 + SIGKILL);
        ASSERT_FACTS(part.err, "injected", "SIGKILL", i == 0 ? "step 5" : second);
        program_close(&part);
    }
    program rest = run_cut(c, "part", WORDS("--resume"));
    ASSERT_EXIT(rest, 0);
    model_file_assert_same_bits("part", "whole");
    double off = train_loss(rest.err, "epoch 2/2: ") - train_loss(whole.err, "epoch 2/2: ");
    ck_assert_msg(fabs(off) < 1.5e-4, "the resumed epoch's loss is %g off", off);
    ck_assert(training_number(rest.out, "test_acc") == training_number(whole.out, "test_acc"));
    program_close(&whole);
    program_close(&rest);
}
END_TEST

/* Stopped behind the last step of an epoch: nothing of it is left to train, but to test. */
START_TEST(resumed_between_training_and_test)
{
    const cut *c = &cuts[3];
    program whole = run_cut(c, "whole", ((const char *const[]){NULL}));
    ASSERT_EXIT(whole, 0);
    /* 115 images per rank: 8 steps an epoch. */
    program part =
        run_cut(c, "part", WORDS("--save-every", "8steps", "--inject", "kill:rank=0,step=9"));
    ASSERT_EXIT(part, 128 + SIGKILL);
    ck_assert(file_exists("part/checkpoints/00000008"));
    program rest = run_cut(c, "part", WORDS("--resume"));
    ASSERT_EXIT(rest, 0);
    model_file_assert_same_bits("part", "whole");
    program_close(&whole);
    program_close(&part);
    program_close(&rest);
}
END_TEST

/* Rewrites a checkpoint's state as versions without hashes wrote it, with another number. */
static void write_state_of_before(const char *path, const char *key, json_int_t number)
{
    static const char *const hashes[] = {"hash", "model_hash", "optimizer_hash", "data", "sums"};
    json_t *state = json_load_file(path, 0, NULL);
    ck_assert_ptr_nonnull(state);
    for (size_t i = 0; i < sizeof hashes / sizeof hashes[0]; i++)
        ck_assert_int_eq(json_object_del(state, hashes[i]), 0);
    ck_assert_int_eq(json_object_set_new(state, "format", json_integer(1)), 0);
    ck_assert_int_eq(json_object_set_new(state, key, json_integer(number)), 0);
    ck_assert_int_eq(json_dump_file(state, path, JSON_INDENT(2)), 0);
    json_decref(state);
}

#define NEWEST "part/checkpoints/00000013/"

/* What is possible for some run, and not for this one. */
static const struct {
    const char *key;
    int64_t number;
} places[] = {
    {"sample_offset", 0}, /* nobody looks at it: a checkpoint of before */
    {"step_in_epoch", 3}, {"epoch", 2}, {"epoch", 1}, {"epoch_samples", 209},
};
enum { N_PLACES = sizeof places / sizeof places[0], N_MISFITS = N_PLACES + 3 };

/* The newest checkpoint is not to be used: the older one is, and leads to the same bits. */
START_TEST(checkpoints_that_do_not_fit_are_passed_over)
{
    const cut *c = &cuts[0];
    program whole = run_cut(c, "whole", ((const char *const[]){NULL}));
    ASSERT_EXIT(whole, 0);
    /* 15 steps an epoch. */
    program part =
        run_cut(c, "part", WORDS("--save-every", "1steps", "--inject", "kill:rank=0,step=14"));
    ASSERT_EXIT(part, 128 + SIGKILL);
    if (_i < N_PLACES)
        write_state_of_before(NEWEST "state.json", places[_i].key, places[_i].number);
    else if (_i < N_PLACES + 2)
        ck_assert_int_eq(file_copy(NEWEST "model.safetensors", NEWEST "optimizer.safetensors"),
                         STATUS_OK);
    else
        ck_assert_int_eq(truncate(NEWEST "state.json", 100), 0);
    if (_i == N_PLACES)
        write_state_of_before(NEWEST "state.json", "sample_offset", 0);
    program rest = run_cut(c, "part", WORDS("--resume"));
    ASSERT_EXIT(rest, 0);
    if (_i > 0)
        ASSERT_FACTS(rest.err, "warning", "checkpoint", "00000013");
    else
        ck_assert_int_eq(facts_count(rest.err, "warning"), 1);
    if (_i == 0)
        ASSERT_FACTS(rest.err, "warning", "part", "data");
    model_file_assert_same_bits("part", "whole");
    program_close(&whole);
    program_close(&part);
    program_close(&rest);
}
END_TEST

/* Then the oldest one's misfit is named. */
START_TEST(a_folder_of_misfits_is_refused)
{
    program part = run_cut(&cuts[0], "part",
                           WORDS("--save-every", "1steps", "--inject", "kill:rank=0,step=14"));
    ASSERT_EXIT(part, 128 + SIGKILL);
    write_state_of_before(NEWEST "state.json", "epoch", 2);
    write_state_of_before("part/checkpoints/00000012/state.json", "epoch", 2);
    program rest = run_cut(&cuts[0], "part", WORDS("--resume"));
    ASSERT_EXIT(rest, 74);
    ASSERT_FACTS(rest.err, "error", "no checkpoint that fits",
                 "step 12 is not step 12 after 2 epochs");
    program_close(&part);
    program_close(&rest);
}
END_TEST

/* A loss that is not finite ends the run, and its continuation at the same step, with the same bits
 * of the step before. */
#define DIVERGING \
    "train", "--model", "mlp", "--optimizer", "sgd", "--lr", "1e6", "--limit", "230", \
        "--batch-size", "16", "--epochs", "2", "--threads", "1", "--save-every", "1steps"

START_TEST(a_diverging_run_ends_where_it_did)
{
    enum { DIVERGED = 76 };
    program whole = program_run_with(NULL, WORDS(DIVERGING, "--run-dir", "whole"));
    ASSERT_EXIT(whole, DIVERGED);
    program part = program_run_with(
        NULL, WORDS(DIVERGING, "--run-dir", "part", "--inject", "kill:rank=0,step=2"));
    ASSERT_EXIT(part, 128 + SIGKILL);
    ck_assert(file_exists("part/checkpoints/00000001"));
    program rest = program_run_with(NULL, WORDS(DIVERGING, "--run-dir", "part", "--resume"));
    ASSERT_EXIT(rest, DIVERGED);
    ck_assert_int_eq(facts_number(whole.err, "error", "step"),
                     facts_number(rest.err, "error", "step"));
    model_file_assert_same_bits("part", "whole");
    program_close(&whole);
    program_close(&part);
    program_close(&rest);
}
END_TEST

/* A run without tests has no best checkpoint beside those that are due. */
#define UNTESTED "--eval-every", "0"
#define SMALL "train", "--model", "mlp", "--limit", "64", "--threads", "1", "--quiet"

static int count_checkpoints(const char *run_dir)
{
    char path[FILE_PATH_BYTES];
    int n = 0;
    snprintf(path, sizeof path, "%s/checkpoints", run_dir);
    DIR *list = opendir(path);
    for (struct dirent *e = list != NULL ? readdir(list) : NULL; e != NULL; e = readdir(list))
        n += e->d_name[0] != '.';
    if (list != NULL)
        closedir(list);
    return n;
}

/* One step is an epoch here. */
static const struct {
    const char *every, *newest, *before;
} rhythms[] = {
    {"2", "00000005", "00000004"},      {"3epochs", "00000005", "00000003"},
    {"1epoch", "00000005", "00000004"}, {"100epochs", "00000005", NULL},
    {"2steps", "00000005", "00000004"}, {"1step", "00000005", "00000004"},
    {"100steps", "00000005", NULL},
};
enum { N_RHYTHMS = sizeof rhythms / sizeof rhythms[0] };

START_TEST(checkpoints_come_when_they_are_due)
{
    char path[FILE_PATH_BYTES];
    program p = program_run_with(NULL, WORDS(SMALL, UNTESTED, "--epochs", "5", "--save-every",
                                             rhythms[_i].every, "--run-dir", "part"));
    ASSERT_EXIT(p, 0);
    snprintf(path, sizeof path, "part/checkpoints/%s", rhythms[_i].newest);
    ck_assert_msg(file_exists(path), "no %s", path);
    snprintf(path, sizeof path, "part/checkpoints/%s", rhythms[_i].before);
    ck_assert_msg(rhythms[_i].before == NULL || file_exists(path), "no %s", path);
    ck_assert_int_eq(count_checkpoints("part"), rhythms[_i].before == NULL ? 1 : 2);
    program_close(&p);
}
END_TEST

/* The newest checkpoint is broken, or whole and of no use: a run that ends before it is saved all
 * the same, and one that goes past it keeps the one that it went on from. */
START_TEST(a_checkpoint_that_was_skipped_is_not_kept)
{
#define SECOND "part/checkpoints/00000002/state.json"
    program first = program_run_with(NULL, WORDS(SMALL, UNTESTED, "--epochs", "2", "--save-every",
                                                 "1epoch", "--run-dir", "part"));
    ASSERT_EXIT(first, 0);
    if (_i == 0)
        ck_assert_int_eq(truncate(SECOND, 100), 0);
    else
        write_state_of_before(SECOND, "epoch", 1);
    program one = program_run_with(
        NULL, WORDS(SMALL, UNTESTED, "--epochs", "1", "--run-dir", "part", "--resume"));
    ASSERT_EXIT(one, 0);
    ASSERT_FACTS(one.err, "warning", "checkpoint", "00000002");
    program past = program_run_with(NULL, WORDS(SMALL, UNTESTED, "--epochs", "4", "--save-every",
                                                "3epochs", "--run-dir", "part", "--resume",
                                                "--inject", "kill:rank=0,step=4"));
    ASSERT_EXIT(past, 128 + SIGKILL);
    ck_assert_int_eq(count_checkpoints("part"), 2);
    ck_assert_int_eq(truncate("part/checkpoints/00000003/state.json", 100), 0);
    program rest = program_run_with(
        NULL, WORDS(SMALL, UNTESTED, "--epochs", "4", "--run-dir", "part", "--resume"));
    ASSERT_EXIT(rest, 0);
    program whole =
        program_run_with(NULL, WORDS(SMALL, UNTESTED, "--epochs", "4", "--run-dir", "whole"));
    ASSERT_EXIT(whole, 0);
    model_file_assert_same_bits("part", "whole");
    program_close(&first);
    program_close(&one);
    program_close(&past);
    program_close(&rest);
    program_close(&whole);
}
END_TEST

static const char *const bad_rhythms[] = {
    "0", "-1", "steps", "5 steps", "1.5epochs", "2weeks", "10stepss", "9999999999", " 3", "+3"};
enum { N_BAD_RHYTHMS = sizeof bad_rhythms / sizeof bad_rhythms[0] };

START_TEST(bad_rhythms_are_refused)
{
    interval every = {.count = 77};
    ck_assert_int_eq(interval_parse("--save-every", 1, bad_rhythms[_i], &every), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "--save-every=100steps");
    ck_assert_int_eq(every.count, 77);
}
END_TEST

START_TEST(auto_starts_what_is_not_there)
{
    const char *const *run = WORDS(SMALL, "--epochs", "2", "--run-dir", "part", "--resume=auto");
    program first = program_run_with(NULL, run);
    ASSERT_EXIT(first, 0);
    program again =
        program_run_with(NULL, WORDS(SMALL, "--epochs", "3", "--run-dir", "part", "--resume=auto"));
    ASSERT_EXIT(again, 0);
    program whole = program_run_with(NULL, WORDS(SMALL, "--epochs", "3", "--run-dir", "whole"));
    ASSERT_EXIT(whole, 0);
    model_file_assert_same_bits("part", "whole");
    program_close(&first);
    program_close(&again);
    program_close(&whole);
}
END_TEST

/* A run that is at its end is neither trained nor saved again. */
START_TEST(a_finished_run_has_nothing_left)
{
    const char *const *run =
        WORDS(SMALL, "--epochs", "1", "--run-dir", "part", "--resume=auto", "--no-quiet");
    program first = program_run_with(NULL, run);
    ASSERT_EXIT(first, 0);
    ASSERT_FACTS(first.out, "finished: 1 epoch");
    program again = program_run_with(NULL, run);
    ASSERT_EXIT(again, 0);
    ASSERT_FACTS(again.out, "nothing left to train", "1 of 1");
    ASSERT_SILENT(again.out, "finished:");
    program_close(&first);
    program_close(&again);
}
END_TEST

/* What differs can be named if the run has left its settings. */
START_TEST(without_settings_what_differs_is_not_known)
{
    program first = program_run_with(NULL, WORDS(SMALL, "--epochs", "1", "--run-dir", "part"));
    ASSERT_EXIT(first, 0);
    ck_assert_int_eq(unlink("part/config.json"), 0);
    program again = program_run_with(NULL, WORDS(SMALL, "--epochs", "2", "--run-dir", "part",
                                                 "--resume", "--label-smoothing", "0.25"));
    ASSERT_EXIT(again, 74);
    ASSERT_FACTS(again.err, "cannot resume part", "it has no config.json", "--label-smoothing");
    program_close(&first);
    program_close(&again);
}
END_TEST

START_TEST(resume_alone_asks_for_a_run)
{
    program p = program_run_with(NULL, WORDS(SMALL, "--run-dir", "part", "--resume"));
    ASSERT_EXIT(p, 74);
    ASSERT_FACTS(p.err, "error", "part", "checkpoint", "resume");
    ck_assert(access("part", F_OK) != 0); /* nothing is made for it */
    program q = program_run_with(NULL, WORDS(SMALL, "--resume=auto"));
    ASSERT_EXIT(q, 74);
    ASSERT_FACTS(q.err, "error", "--resume", "--run-dir");
    program none = program_run_with(NULL, WORDS("resume", "--quiet"));
    ASSERT_EXIT(none, 74);
    ASSERT_FACTS(none.err, "error", "runs", "mnist_ddp resume RUN");
    program_close(&p);
    program_close(&q);
    program_close(&none);
}
END_TEST

/* As the newest in runs/, by --resume alone, and by name; the ranks of a launch go on with the run
 * that it has found. */
START_TEST(resume_is_a_command)
{
    const struct {
        const char *const *words;
        const char *facts[2];
    } ways[] = {
        {WORDS(SMALL, "--epochs=1", "--run-dir=runs/a", "--no-quiet"), {"runs/a", ""}},
        {WORDS(SMALL, "--epochs=1", "--run-dir=runs/b", "--no-quiet"), {"runs/b", ""}},
        {WORDS("resume", "--max-restarts=1", "--inject=kill:rank=0,step=2", "--epochs=2"),
         {"runs/b", "resuming after epoch 1"}},
        {WORDS("--resume", "--epochs=3"), {"runs/b", "resuming after epoch 2"}},
        {WORDS("resume", "runs/a", "--epochs=2"), {"runs/a", "resuming after epoch 1"}},
        {WORDS("report"), {"runs/a/report.html", ""}},
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        program p = program_run_with(NULL, ways[i].words);
        ASSERT_EXIT(p, 0);
        ASSERT_FACTS(p.out, ways[i].facts[0]);
        ck_assert(strstr(p.out, ways[i].facts[1]) != NULL);
        program_close(&p);
    }
}
END_TEST

/* The folder or its checkpoints are another user's. CAP_DAC_OVERRIDE lets root write anyway. */
START_TEST(a_folder_that_cannot_be_written_is_refused_before_the_first_step)
{
    const char *closed = _i == 0 ? "part" : "part/checkpoints";
    program p = program_run_with(NULL, WORDS(SMALL, "--run-dir", "part", "--epochs=1"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    ck_assert_int_eq(chmod(closed, 0555), 0);
    (void)prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE);
    p = program_run_with(NULL, WORDS(SMALL, "--run-dir", "part", "--epochs=2", "--resume"));
    ck_assert_int_eq(chmod(closed, 0755), 0);
    ASSERT_EXIT(p, 74);
    ASSERT_FACTS(p.err, "error", closed, "Permission denied", "--run-dir", "--no-save-model");
    ck_assert_str_eq(p.out, "");
    program_close(&p);
}
END_TEST

/* The launcher says it once, and starts no rank. */
START_TEST(a_folder_that_is_taken_starts_no_rank)
{
    const char *const *run =
        WORDS(SMALL, "--epochs", "1", "--run-dir", "part", "--nproc-per-node", "2");
    ck_assert_int_eq(mkdir("part", 0777), 0);
    ck_assert_int_eq(mkdir("part/checkpoints", 0777), 0);
    program p = program_run_with(NULL, run);
    ASSERT_EXIT(p, 74);
    ASSERT_FACTS(p.err, "error", "part", "--resume", "--run-dir");
    ASSERT_NO_FACTS(p.err, "rank 0");
    ck_assert_ptr_eq(strchr(p.err, '\n'), p.err + strlen(p.err) - 1);
    program_close(&p);
}
END_TEST

/* As a launcher starts its workers: attempt `restart` of a launch. */
static program run_worker(const char *restart, const char *launched, const char *const *flags)
{
    char restart_text[64], launched_text[64];
    snprintf(restart_text, sizeof restart_text, "TORCHELASTIC_RESTART_COUNT=%s", restart);
    snprintf(launched_text, sizeof launched_text, "MNIST_DDP_LAUNCHED=%s", launched);
    return program_run_with(WORDS("env", "RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0",
                                  "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1",
                                  restart_text, launched_text),
                            flags);
}

START_TEST(workers_started_again_go_on)
{
    const char *const *run = WORDS(SMALL, "--epochs", "3", "--run-dir", "part");
    const char *const *killed =
        WORDS(SMALL, "--epochs", "3", "--run-dir", "part", "--inject", "kill:rank=0,step=3");
    program fresh_start = run_worker("1", "5", run); /* nothing there yet: from the beginning */
    ASSERT_EXIT(fresh_start, 0);
    test_folder_clean();
    program first = run_worker("0", "5", killed);
    ASSERT_EXIT(first, 128 + SIGKILL);
    program second = run_worker("1", "5", killed); /* the fault is of attempt 0 alone */
    ASSERT_EXIT(second, 0);
    program whole = program_run_with(NULL, WORDS(SMALL, "--epochs", "3", "--run-dir", "whole"));
    ASSERT_EXIT(whole, 0);
    model_file_assert_same_bits("part", "whole");
    program_close(&fresh_start);
    program_close(&first);
    program_close(&second);
    program_close(&whole);
}
END_TEST

/* A launch that found the folder taken does not go on with it the second time. */
START_TEST(workers_started_again_leave_other_runs_alone)
{
    const char *const *run = WORDS(SMALL, "--epochs", "3", "--run-dir", "part");
    program other = run_worker("0", "4", WORDS(SMALL, "--epochs", "1", "--run-dir", "part"));
    ASSERT_EXIT(other, 0);
    for (int restart = 0; restart < 2; restart++) {
        program p = run_worker(restart == 0 ? "0" : "1", "5", run);
        ASSERT_EXIT(p, 74);
        ASSERT_FACTS(p.err, "error", "part", "--resume", "--run-dir");
        program_close(&p);
    }
    program asked =
        run_worker("1", "5", WORDS(SMALL, "--epochs", "3", "--run-dir", "part", "--resume"));
    ASSERT_EXIT(asked, 0);
    program_close(&other);
    program_close(&asked);
}
END_TEST

static void add_other_tests(TCase *runs)
{
    tcase_add_test(runs, resumed_between_training_and_test);
    tcase_add_loop_test(runs, checkpoints_that_do_not_fit_are_passed_over, 0, N_MISFITS);
    tcase_add_test(runs, a_folder_of_misfits_is_refused);
    tcase_add_loop_test(runs, checkpoints_come_when_they_are_due, 0, N_RHYTHMS);
    tcase_add_loop_test(runs, a_checkpoint_that_was_skipped_is_not_kept, 0, 2);
    tcase_add_loop_test(runs, bad_rhythms_are_refused, 0, N_BAD_RHYTHMS);
    tcase_add_test(runs, a_diverging_run_ends_where_it_did);
    tcase_add_test(runs, auto_starts_what_is_not_there);
    tcase_add_test(runs, a_finished_run_has_nothing_left);
    tcase_add_test(runs, without_settings_what_differs_is_not_known);
    tcase_add_test(runs, resume_alone_asks_for_a_run);
    tcase_add_test(runs, resume_is_a_command);
    tcase_add_loop_test(runs, a_folder_that_cannot_be_written_is_refused_before_the_first_step, 0,
                        2);
    tcase_add_test(runs, a_folder_that_is_taken_starts_no_rank);
    tcase_add_test(runs, workers_started_again_go_on);
    tcase_add_test(runs, workers_started_again_leave_other_runs_alone);
}

/* With --backend=gloo: what that backend has a part in. */
int main(int argc, char **argv)
{
    if (!training_choose_backend(argc, argv))
        return TEST_SKIPPED;
    bool gloo = training_is_on_gloo();
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("resume");
    TCase *runs = suite_case(suite, "runs", 4 * RUN_S);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_loop_test(runs, killed_in_mid_epoch_and_resumed_has_the_same_bits,
                        gloo ? GLOO_CUT : 0, gloo ? N_CUTS : GLOO_CUT);
    if (!gloo)
        add_other_tests(runs);
    return test_folder_close(suite_run(suite));
}
