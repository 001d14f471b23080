/* One process, DataParallel, a parameter server and DistributedDataParallel: the same weights from
 * the same global batch, stopped and resumed alike, and clear words where settings do not go
 * together. */
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"

#include <math.h>
#include <signal.h>
#include <unistd.h>

/* Batches of 24, 24, 24 and 18: the last one is cut otherwise than the others. */
#define TRAIN "train", "--epochs", "1", "--json", "--quiet", "--threads", "1", "--seed", "3"
#define UNEVEN "--limit", "90"
#define TWO_STEPS "--limit=48", "--eval-every=0"

static const struct {
    const char *name, *lr;
} OPTIMIZERS[] = {{"sgd", "0.05"}, {"adam", "0.001"}, {"adadelta", "0.5"}};
enum { N_OPTIMIZERS = sizeof OPTIMIZERS / sizeof OPTIMIZERS[0] };

static const struct {
    const char *mode, *flag, *parts, *batch;
} SPREADS[] = {
    {"dp", "--replicas", "2", "24"},         {"dp", "--replicas", "3", "24"},
    {"dp", "--replicas", "5", "24"}, /* 5, 5, 5, 5 and 4; then 4, 4, 4, 4 and 2 */
    {"ps", "--nproc-per-node", "2", "12"},   {"ps", "--nproc-per-node", "3", "8"},
    {"ddp", "--nproc-per-node", "2", "12"},  {"ddp", "--nproc-per-node", "3", "8"},
    {"zero1", "--nproc-per-node", "3", "8"}, {"fsdp", "--nproc-per-node", "3", "8"},
};
enum { N_SPREADS = sizeof SPREADS / sizeof SPREADS[0] };

static bool has_backend(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/mnist_ddp_%s.so", getenv("BUILD_DIR"), name);
    return access(path, F_OK) == 0;
}

/* `argv` has room for `flags`, which come after its words. */
static program run_with(const char *argv[MAX_WORDS], const char *const *flags)
{
    int n = 0;
    while (argv[n] != NULL)
        n++;
    for (int i = 0; flags[i] != NULL; i++)
        argv[n++] = flags[i];
    program p = program_run_with(NULL, argv);
    ASSERT_EXIT(p, 0);
    return p;
}

static program train(const char *model, int optimizer, const char *const *flags)
{
    const char *argv[MAX_WORDS] = {TRAIN,
                                   "--model",
                                   model,
                                   "--optimizer",
                                   OPTIMIZERS[optimizer].name,
                                   "--lr",
                                   OPTIMIZERS[optimizer].lr};
    return run_with(argv, flags);
}

static void train_and_close(const char *model, int optimizer, const char *const *flags)
{
    program p = train(model, optimizer, flags);
    program_close(&p);
}

/* The sums are taken in another order: each gradient differs by some 1e-7 of its size, as in
 * tests/app/test_parity.c, where 5e-5 of the largest weight is shown to bound that (4.3e-7 was seen
 * here). Two things move few elements by more, so there the norm is compared: Adam divides each
 * gradient by its own size, so where one is all rounding error, its element moves by up to lr
 * either way (2e-5 of the norm was seen); and of 500,000 pooling windows one may turn around, which
 * Adadelta's first steps make the most of (1.1e-4). */
static void assert_same_weights(const char *model, int optimizer, const char *what)
{
    bool by_norm = strcmp(OPTIMIZERS[optimizer].name, "adam") == 0 || strcmp(model, "cnn") == 0;
    double off = by_norm
                     ? model_file_norm_difference(test_folder_path("many"), test_folder_path("one"))
                     : model_file_difference(test_folder_path("many"), test_folder_path("one"));
    ck_assert_msg(off < (by_norm ? 5e-4 : 5e-5), "%s, %s, %s: weights differ by %g", what, model,
                  OPTIMIZERS[optimizer].name, off);
}

static void assert_same_optimizers(void)
{
    ck_assert_int_eq(system("cmp one/checkpoints/best/optimizer.safetensors "
                            "many/checkpoints/best/optimizer.safetensors"),
                     0);
}

START_TEST(modes_equal_one_process)
{
    const char *model = _i % 2 == 0 ? "mlp" : "cnn";
    int optimizer = _i / 2;
    train_and_close(model, optimizer,
                    WORDS(UNEVEN, "--mode", "single", "--batch-size", "24", "--run-dir", "one"));
    for (int i = 0; i < N_SPREADS; i++) {
        program p =
            train(model, optimizer,
                  WORDS(UNEVEN, "--mode", SPREADS[i].mode, SPREADS[i].flag, SPREADS[i].parts,
                        "--batch-size", SPREADS[i].batch, "--run-dir", "many"));
        assert_same_weights(model, optimizer, SPREADS[i].mode);
        ck_assert(training_number(p.out, "global_batch") == 24);
        ck_assert(training_number(p.out, "images_per_epoch") == 90);
        program_close(&p);
        ck_assert_int_eq(system("rm -rf many"), 0);
    }
}
END_TEST

/* Every mode with 2, 3 and 4 devices, and every network, after two steps. */
START_TEST(the_matrix_equals_one_process)
{
    static const char *const models[] = {"mlp", "cnn", "speedrun"};
    static const char *const modes[] = {"dp",   "ddp",      "ps", "zero1",
                                        "fsdp", "pipeline", "tp", "model"};
    static const char *const devices[] = {"2", "3", "4"};
    const char *model = models[_i / 3], *n = devices[_i % 3];
    train_and_close(model, 0,
                    WORDS(TWO_STEPS, "--mode=single", "--batch-size=24", "--run-dir", "one"));
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        bool in_process = strcmp(modes[i], "dp") == 0 || strcmp(modes[i], "model") == 0;
        bool has_parts = strcmp(modes[i], "pipeline") == 0 || strcmp(modes[i], "model") == 0;
        if (has_parts && strcmp(n, "4") == 0) /* no network has as many */
            continue;
        train_and_close(model, 0,
                        WORDS(TWO_STEPS, "--mode", modes[i],
                              in_process ? "--replicas" : "--nproc-per-node", n,
                              "--global-batch-size=24", "--run-dir", "many"));
        double off = model_file_difference(test_folder_path("many"), test_folder_path("one"));
        ck_assert_msg(off < 1e-6, "%s x %s, %s: weights differ by %g", modes[i], n, model, off);
        ck_assert_int_eq(system("rm -rf many"), 0);
    }
}
END_TEST

/* Batches of 5 for 4 replicas are 2, 2 and 1, so one replica is idle; the last batch has one image,
 * which is the master's alone. */
START_TEST(replicas_may_be_idle)
{
    const char *model = _i == 0 ? "mlp" : "cnn";
    train_and_close(
        model, 0, WORDS("--limit", "21", "--mode=single", "--batch-size", "5", "--run-dir", "one"));
    train_and_close(model, 0,
                    WORDS("--limit", "21", "--mode=dp", "--replicas=4", "--batch-size", "5",
                          "--run-dir", "many"));
    assert_same_weights(model, 0, "idle replicas");
}
END_TEST

START_TEST(one_replica_is_one_process)
{
    const char *model = _i == 0 ? "mlp" : "cnn";
    train_and_close(model, 0, WORDS(UNEVEN, "--mode", "single", "--run-dir", "one"));
    train_and_close(model, 0,
                    WORDS(UNEVEN, "--mode", "dp", "--replicas", "1", "--run-dir", "many"));
    model_file_assert_same_bits("many", "one");
}
END_TEST

/* The norm is that of the gradient of the whole batch, in every mode. */
START_TEST(clipped_steps_equal_one_process)
{
    const char *model = _i == 0 ? "mlp" : "cnn";
    const char *clip[] = {"--clip-grad-norm", "0.5"};
    train_and_close(model, 0,
                    WORDS(UNEVEN, "--mode=single", "--batch-size", "24", "--run-dir", "many"));
    train_and_close(
        model, 0,
        WORDS(UNEVEN, clip[0], clip[1], "--mode=single", "--batch-size", "24", "--run-dir", "one"));
    ck_assert(model_file_difference(test_folder_path("many"), test_folder_path("one")) > 1e-3);
    for (int i = 0; i < N_SPREADS; i++) {
        if (strcmp(SPREADS[i].mode, "fsdp") == 0) /* refuses it */
            continue;
        ck_assert_int_eq(system("rm -rf many"), 0);
        train_and_close(model, 0,
                        WORDS(UNEVEN, clip[0], clip[1], "--mode", SPREADS[i].mode, SPREADS[i].flag,
                              SPREADS[i].parts, "--batch-size", SPREADS[i].batch, "--run-dir",
                              "many"));
        assert_same_weights(model, 0, SPREADS[i].mode);
    }
}
END_TEST

/* Two ranks send the same gradients to a server as they average among themselves. */
START_TEST(clipped_ranks_have_the_bits_of_a_server)
{
    const char *words[] = {"--mode=ddp", "--mode=ps"}, *folders[] = {"one", "many"};
    for (int i = 0; i < 2; i++)
        train_and_close("cnn", 0,
                        WORDS(UNEVEN, words[i], "--nproc-per-node=2", "--batch-size=12",
                              "--clip-grad-norm=0.5", "--run-dir", folders[i]));
    model_file_assert_same_bits("many", "one");
}
END_TEST

/* Two slices, or three, whose last one is shorter and holds the wish to stop and padding. */
START_TEST(slices_have_the_bits_of_ddp)
{
    static const char *const words[][3] = {
        {"--nproc-per-node=2", "--batch-size=12", "--backend=shm"},
        {"--nproc-per-node=3", "--batch-size=8", "--backend=shm"},
        {"--nproc-per-node=3", "--batch-size=8", "--backend=auto"}};
    const char *const *w = words[_i % 3];
    const char *modes[] = {"--mode=ddp", "--mode=zero1"}, *folders[] = {"one", "many"};
    const char *clip = _i % 3 == 0 ? "--clip-grad-norm=0.5" : "--seed=5";
    for (int i = 0; i < 2; i++)
        train_and_close(_i % 2 == 0 ? "mlp" : "cnn", _i % N_OPTIMIZERS,
                        WORDS(UNEVEN, modes[i], w[0], w[1], w[2], clip, "--run-dir", folders[i]));
    model_file_assert_same_bits("many", "one");
    assert_same_optimizers();
}
END_TEST

/* A slice of each layer, with batches that are not the same on all ranks in the last step, and a
 * validation image or none for each. */
START_TEST(sharded_layers_have_the_bits_of_ddp)
{
    static const char *const words[][4] = {
        {"--nproc-per-node=2", "--batch-size=12", "--backend=shm", "--accum=1"},
        {"--nproc-per-node=3", "--batch-size=8", "--backend=shm", "--val-split=2"},
        {"--nproc-per-node=2", "--batch-size=12", "--backend=gloo", "--amp=bf16"},
        {"--nproc-per-node=3", "--batch-size=4", "--backend=gloo", "--accum=2"}};
    const char *const *w = words[_i];
    const char *backend = has_backend("gloo") ? w[2] : "--backend=shm";
    const char *modes[] = {"--mode=ddp", "--mode=fsdp"}, *folders[] = {"one", "many"};
    for (int i = 0; i < 2; i++)
        train_and_close(_i % 2 == 0 ? "mlp" : "cnn", _i % N_OPTIMIZERS,
                        WORDS(UNEVEN, modes[i], w[0], w[1], backend, w[3], "--test-batch-size=63",
                              "--run-dir", folders[i]));
    model_file_assert_same_bits("many", "one");
    ck_assert_int_eq(system("cmp one/checkpoints/best/optimizer.safetensors "
                            "many/checkpoints/best/optimizer.safetensors && "
                            "cmp one/eval.json many/eval.json"),
                     0);
}
END_TEST

/* A run of slices goes on with another number of them, whole, and in slices again: as ddp does. */
START_TEST(slices_and_whole_states_resume_each_other)
{
    static const char *const ways[][4] = {{"ddp", "ddp", "ddp", "ddp"},
                                          {"zero1", "ddp", "zero1", "fsdp"},
                                          {"fsdp", "fsdp", "ddp", "fsdp"}};
    static const char *const ranks[] = {"--nproc-per-node=2", "--nproc-per-node=3",
                                        "--nproc-per-node=2", "--nproc-per-node=3"};
    static const char *const epochs[] = {"--epochs=1", "--epochs=2", "--epochs=3", "--epochs=4"};
    const char *folders[] = {"one", "many", "sharded"};
    for (int way = 0; way < 3; way++)
        for (int i = 0; i < 4; i++) {
            program p = program_mnist("train", "--quiet", "--threads=1", "--seed=3", "--model=cnn",
                                      "--optimizer=adam", UNEVEN, "--batch-size=8", "--mode",
                                      ways[way][i], ranks[i], epochs[i], "--resume=auto",
                                      "--run-dir", folders[way], NULL);
            ASSERT_EXIT(p, 0);
            program_close(&p);
        }
    model_file_assert_same_bits("many", "one");
    model_file_assert_same_bits("sharded", "one");
}
END_TEST

/* --init reaches each shard. */
START_TEST(shards_begin_as_ddp)
{
    const char *modes[] = {"--mode=ddp", "--mode=fsdp"}, *folders[] = {"one", "many"};
    train_and_close("cnn", 0, WORDS(UNEVEN, "--mode=single", "--run-dir", "first"));
    for (int i = 0; i < 2; i++)
        train_and_close(
            "cnn", 0,
            WORDS(UNEVEN, "--init=first", "--nproc-per-node=2", modes[i], "--run-dir", folders[i]));
    model_file_assert_same_bits("many", "one");
}
END_TEST

/* The layers of one process, on one device or on several. */
START_TEST(devices_with_parts_have_the_bits_of_one)
{
    static const char *const ways[][2] = {{"--accum=1", "--batch-size=24"},
                                          {"--accum=2", "--batch-size=12"}};
    const char *model = _i % 2 == 0 ? "mlp" : "cnn", *const *way = ways[_i / 2 % 2];
    int optimizer = _i % N_OPTIMIZERS;
    train_and_close(model, optimizer,
                    WORDS(UNEVEN, "--mode=single", way[0], way[1], "--run-dir", "one"));
    for (int devices = 2; devices <= 3; devices++) {
        program p =
            train(model, optimizer,
                  WORDS(UNEVEN, "--mode=model", devices == 2 ? "--replicas=2" : "--replicas=3",
                        way[0], way[1], "--run-dir", "many"));
        model_file_assert_same_bits("many", "one");
        assert_same_optimizers();
        ck_assert_int_eq(system("cmp one/eval.json many/eval.json"), 0);
        ck_assert(training_number(p.out, "global_batch") == 24);
        program_close(&p);
        ck_assert_int_eq(system("rm -rf many"), 0);
    }
}
END_TEST

/* A run goes on from one device to two, to three and back; --init, too, reaches each. */
START_TEST(devices_with_parts_resume_and_begin_as_one)
{
    static const char *const ways[][4] = {
        {"--mode=single", "--mode=single", "--mode=single", "--mode=single"},
        {"--mode=single", "--mode=model", "--mode=model", "--mode=model"}};
    static const char *const devices[] = {"--seed=3", "--replicas=2", "--replicas=3",
                                          "--replicas=2"};
    const char *folders[][2] = {{"one", "one2"}, {"many", "many2"}};
    const char *epochs[] = {"--epochs=1", "--epochs=2", "--epochs=3", "--epochs=1"};
    for (int way = 0; way < 2; way++)
        for (int run = 0; run < 4; run++) {
            program p = program_mnist("train", "--quiet", "--threads=1", "--seed=3", "--model=cnn",
                                      "--optimizer=adam", UNEVEN, ways[way][run],
                                      way == 0 ? "--seed=3" : devices[run], epochs[run],
                                      run < 3 ? "--resume=auto" : "--init=one", "--run-dir",
                                      folders[way][run == 3], NULL);
            ASSERT_EXIT(p, 0);
            program_close(&p);
        }
    model_file_assert_same_bits("many", "one");
    model_file_assert_same_bits("many2", "one2");
}
END_TEST

static const char *const SCHEDULES[] = {"--pipeline-schedule=gpipe", "--pipeline-schedule=1f1b"};
static const char *const STAGES[] = {"--nproc-per-node=2", "--nproc-per-node=3"};

/* Micro-batches are batches whose gradients are added up; on one stage or several. */
START_TEST(stages_have_the_bits_of_accumulated_batches)
{
    const char *model = _i % 2 == 0 ? "mlp" : "cnn";
    const char *stages = STAGES[_i / 2 % 2], *schedule = SCHEDULES[_i / 4 % 2];
    const char *backend = _i % 3 == 0 ? "--backend=gloo" : "--backend=shm";
    if (!has_backend("gloo"))
        backend = "--backend=shm";
    train_and_close(
        model, _i % N_OPTIMIZERS,
        WORDS("--limit=96", "--mode=single", "--batch-size=8", "--accum=3", "--run-dir", "one"));
    train_and_close(model, _i % N_OPTIMIZERS,
                    WORDS("--limit=96", "--mode=pipeline", stages, schedule, backend,
                          "--batch-size=24", "--micro-batches=3", "--run-dir", "many"));
    model_file_assert_same_bits("many", "one");
    assert_same_optimizers();
}
END_TEST

/* Rows of a mesh are ranks of ddp that add up the same pieces; a row goes on with what ranks have
 * saved, and the reverse. */
START_TEST(rows_of_pipelines_have_the_bits_of_ddp)
{
    const char *model = _i % 2 == 0 ? "mlp" : "cnn", *schedule = SCHEDULES[_i / 2];
    const char *rows[] = {"--mesh=dp=2,pp=2", "--mesh=dp=3,pp=2"};
    const char *all[] = {"--nproc-per-node=4", "--nproc-per-node=6"};
    for (int epochs = 1; epochs <= 2; epochs++) {
        const char *until = epochs == 1 ? "--epochs=1" : "--epochs=2";
        train_and_close(model, _i % N_OPTIMIZERS,
                        WORDS("--limit=72", "--mode=ddp", STAGES[_i % 2], "--batch-size=4",
                              "--accum=3", until, "--resume=auto", "--run-dir", "one"));
        train_and_close(model, _i % N_OPTIMIZERS,
                        WORDS("--limit=72", "--mode=pipeline", rows[_i % 2], all[_i % 2], schedule,
                              "--batch-size=12", "--micro-batches=3", until, "--resume=auto",
                              "--run-dir", "many"));
    }
    model_file_assert_same_bits("many", "one");
    ck_assert_int_eq(system("cmp one/checkpoints/best/optimizer.safetensors "
                            "many/checkpoints/best/optimizer.safetensors"),
                     0);
}
END_TEST

/* The last batch of 18 has four pieces of 5, 5, 5 and 3; with --accum two batches are one step. */
START_TEST(a_pipeline_equals_one_process)
{
    const char *model = _i % 2 == 0 ? "mlp" : "cnn";
    int optimizer = _i / 2;
    train_and_close(model, optimizer,
                    WORDS(UNEVEN, "--mode=single", "--batch-size=24", "--run-dir", "one"));
    program p = train(model, optimizer,
                      WORDS(UNEVEN, "--mode=pipeline", STAGES[_i % 2], SCHEDULES[_i % 2],
                            _i < 2   ? "--batch-size=24"
                            : _i < 4 ? "--global-batch-size=24"
                                     : "--batch-size=12",
                            _i < 4 ? "--accum=1" : "--accum=2", "--run-dir", "many"));
    assert_same_weights(model, optimizer, "pipeline");
    ck_assert(training_number(p.out, "global_batch") == 24);
    ck_assert(training_number(p.out, "images_per_epoch") == 90);
    program_close(&p);
}
END_TEST

/* The losses of a run's steps, as its metrics have them. */
static int read_losses(const char *path, double *out, int most)
{
    int n = 0;
    char *text = test_folder_read(path), *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        const char *at = strstr(line, "\"loss\":");
        if (strstr(line, "\"step\"") == NULL || at == NULL || n == most)
            continue;
        out[n++] = strtod(at + strlen("\"loss\":"), NULL);
    }
    free(text);
    return n;
}

/* Of the whole batch, not of its last piece; with --accum of the step's last batch, as in one
 * process. The file has six digits. */
START_TEST(a_pipelines_steps_have_the_loss_of_one_process)
{
    const char *accum = _i == 0 ? "--accum=1" : "--accum=2";
    const char *flags[][2] = {{"--mode=single", "--seed=3"},
                              {"--mode=pipeline", "--nproc-per-node=2"}};
    const char *folders[] = {"one", "many"};
    double losses[2][8];
    int n[2];
    for (int i = 0; i < 2; i++) {
        train_and_close("mlp", 0,
                        WORDS(UNEVEN, flags[i][0], flags[i][1], "--batch-size=12", accum,
                              "--log-interval=1", "--run-dir", folders[i]));
        n[i] = read_losses(i == 0 ? "one/metrics.jsonl" : "many/metrics.jsonl", losses[i], 8);
    }
    ck_assert_int_eq(n[0], _i == 0 ? 8 : 4);
    ck_assert_int_eq(n[1], n[0]);
    for (int step = 0; step < n[0]; step++)
        ck_assert_double_eq_tol(losses[1][step], losses[0][step], 1e-5);
}
END_TEST

/* Three stages go on with what two have saved, and the reverse; --init, too, reaches each. */
START_TEST(stages_resume_and_begin_as_one_process)
{
    const char *accum[] = {"--mode=single", "--batch-size=8", "--accum=3", NULL};
    const char *stages[] = {"--mode=pipeline", "--batch-size=24", "--micro-batches=3", NULL};
    const char *folders[] = {"one", "many"};
    for (int way = 0; way < 2; way++)
        for (int run = 0; run < 4; run++) {
            const char *const *w = way == 0 ? accum : stages;
            const char *epochs[] = {"--epochs=1", "--epochs=2", "--epochs=3", "--epochs=1"};
            program p = program_mnist("train", "--quiet", "--threads=1", "--seed=3", "--model=cnn",
                                      "--optimizer=adam", "--limit=96", w[0], w[1], w[2],
                                      way == 0 ? "--seed=3" : STAGES[run % 2], epochs[run],
                                      run < 3 ? "--resume=auto" : "--init=one", "--run-dir",
                                      run < 3    ? folders[way]
                                      : way == 0 ? "one2"
                                                 : "many2",
                                      NULL);
            ASSERT_EXIT(p, 0);
            program_close(&p);
        }
    model_file_assert_same_bits("many", "one");
    model_file_assert_same_bits("many2", "one2");
}
END_TEST

static double number_after(const program *p, const char *words)
{
    const char *at = strstr(p->out, words);
    ck_assert_msg(at != NULL, "no '%s' in: %s", words, p->out);
    return strtod(at + strlen(words), NULL);
}

/* What shards have; sums of two and three parts in another order leave 1.6e-7 of the largest weight
 * (0 to 1.6e-7 was seen), a wrong mask of dropout or a shard's wrong weight 1e-2 and more. */
START_TEST(shards_equal_one_process)
{
    static const char *const models[] = {"mlp", "cnn", "speedrun"};
    static const char *const ranks[] = {"--nproc-per-node=2", "--nproc-per-node=3",
                                        "--nproc-per-node=4"};
    const char *model = models[_i % 3];
    train_and_close(model, 0,
                    WORDS(UNEVEN, "--mode=single", "--batch-size=24", "--run-dir", "one"));
    program p = train(model, 0,
                      WORDS(UNEVEN, "--mode=tp", ranks[(_i + _i / 3) % 3],
                            _i < 3 ? "--batch-size=24" : "--batch-size=12",
                            _i < 3 ? "--accum=1" : "--accum=2",
                            _i < 3 || !has_backend("gloo") ? "--backend=shm" : "--backend=gloo",
                            "--run-dir", "many"));
    double off = model_file_difference(test_folder_path("many"), test_folder_path("one"));
    ck_assert_msg(off < 1e-6, "%s: weights differ by %g", model, off);
    ck_assert(training_number(p.out, "global_batch") == 24);
    ck_assert(training_number(p.out, "images_per_epoch") == 90);
    program_close(&p);
}
END_TEST

/* Two rows of shards, each with batches of its own; both go on from a checkpoint. */
START_TEST(rows_of_shards_equal_one_process)
{
    static const char *const meshes[][3] = {
        {"--mode=tp", "--mesh=dp=2,tp=2", "--batch-size=12"},
        {"--mode=fsdp", "--mesh=dp=2,fsdp=2", "--batch-size=6"}};
    const char *const *mesh = meshes[_i];
    train_and_close(
        "cnn", 0,
        WORDS("--limit=44", "--mode=single", "--batch-size=24", "--epochs=2", "--run-dir", "one"));
    for (int i = 0; i < 2; i++)
        train_and_close("cnn", 0,
                        WORDS("--limit=44", mesh[0], mesh[1], mesh[2], "--nproc-per-node=4",
                              i == 0 ? "--epochs=1" : "--epochs=2", "--resume=auto", "--run-dir",
                              "many"));
    double off = model_file_difference(test_folder_path("many"), test_folder_path("one"));
    ck_assert_msg(off < 1e-6, "%s: weights differ by %g", mesh[1], off);
}
END_TEST

static void go_on(const char *folder, const char *const *flags)
{
    const char *argv[MAX_WORDS] = {"train",       "--quiet",
                                   "--threads=1", "--seed=3",
                                   "--model=cnn", "--optimizer=adam",
                                   "--limit=96",  "--global-batch-size=24",
                                   "--run-dir",   folder};
    program p = run_with(argv, flags);
    program_close(&p);
}

/* All that a rank gives a checkpoint comes back to it; what all ranks have, from rank 0. */
START_TEST(resumed_shards_have_the_same_bits)
{
    const char *three[] = {"--mode=tp", "--nproc-per-node=3"};
    go_on("one", WORDS(three[0], three[1], "--epochs=2"));
    go_on("many", WORDS(three[0], three[1], "--epochs=1"));
    go_on("many", WORDS(three[0], three[1], "--epochs=2", "--resume"));
    model_file_assert_same_bits("many", "one");
    ck_assert_int_eq(system("cmp one/checkpoints/best/optimizer.safetensors "
                            "many/checkpoints/best/optimizer.safetensors"),
                     0);
}
END_TEST

/* One process, three shards, two, ranks with whole networks, and shards again; then --init. */
START_TEST(shards_and_whole_states_resume_each_other)
{
    go_on("one", WORDS("--mode=single", "--epochs=5"));
    go_on("many", WORDS("--mode=single", "--epochs=1"));
    go_on("many", WORDS("--mode=tp", "--nproc-per-node=3", "--epochs=2", "--resume"));
    go_on("many", WORDS("--mode=tp", "--nproc-per-node=2", "--epochs=3", "--resume"));
    go_on("many", WORDS("--mode=ddp", "--nproc-per-node=2", "--epochs=4", "--resume"));
    go_on("many", WORDS("--mode=tp", "--nproc-per-node=3", "--epochs=5", "--resume"));
    assert_same_weights("cnn", 1, "resumed shards");
    go_on("one2", WORDS("--mode=single", "--epochs=1", "--init=one"));
    go_on("many2", WORDS("--mode=tp", "--nproc-per-node=2", "--epochs=1", "--init=one"));
    double off = model_file_norm_difference(test_folder_path("many2"), test_folder_path("one2"));
    ck_assert_msg(off < 5e-4, "weights differ by %g", off);
}
END_TEST

/* MiB of device memory that rank 0 has held at most, less what rank 1 has. */
static double peak_difference(const program *p)
{
    double first = 0, second = 0;
    const char *at = strstr(p->out, "\"peak_mib\":[");
    ck_assert_ptr_nonnull(at);
    ck_assert_int_eq(sscanf(at, "\"peak_mib\":[%lf,%lf]", &first, &second), 2);
    return first - second;
}

/* Adam has two floats a parameter: with ddp on each rank, with ps on the server alone. */
START_TEST(only_the_server_has_the_optimizers_state)
{
    static const char *const modes[] = {"--mode=ddp", "--mode=ps"};
    for (int i = 0; i < 2; i++) {
        program p = train("mlp", 1, WORDS(UNEVEN, modes[i], "--nproc-per-node=2"));
        double state_mib = 2 * 4 * training_number(p.out, "parameters") / (1024 * 1024);
        double more = peak_difference(&p);
        ck_assert_msg(fabs(more - (i == 0 ? 0 : state_mib)) < 0.1 * state_mib,
                      "%s: rank 0 has %g MiB more, the state is %g MiB", modes[i], more, state_mib);
        program_close(&p);
    }
}
END_TEST

/* Half of the state is on each of two ranks. */
START_TEST(each_rank_has_the_state_of_its_slice)
{
    static const char *const modes[] = {"--mode=ddp", "--mode=zero1"};
    double peak[2], state_mib = 0;
    for (int i = 0; i < 2; i++) {
        program p = train("mlp", 1, WORDS(UNEVEN, modes[i], "--nproc-per-node=2"));
        const char *at = strstr(p.out, "\"peak_mib\":[");
        ck_assert_ptr_nonnull(at);
        ck_assert_int_eq(sscanf(at, "\"peak_mib\":[%lf", &peak[i]), 1);
        state_mib = 2 * 4 * training_number(p.out, "parameters") / (1024 * 1024);
        ck_assert_double_lt(fabs(peak_difference(&p)), 0.1 * state_mib);
        program_close(&p);
    }
    ck_assert_double_eq_tol(peak[0] - peak[1], state_mib / 2, 0.1 * state_mib);
}
END_TEST

/* With 4 ranks ddp has 4 arrays as long as the parameters, zero1 2.5, and fsdp a quarter of 4 and
 * its buffers: fc1 and fc2, which are nearly one. */
START_TEST(each_rank_has_a_slice_of_all)
{
    static const char *const modes[] = {"--mode=ddp", "--mode=zero1", "--mode=fsdp"};
    double peak[3], array_mib = 0;
    for (int i = 0; i < 3; i++) {
        program p = train("mlp", 1, WORDS(UNEVEN, modes[i], "--nproc-per-node=4"));
        peak[i] = number_after(&p, "\"peak_mib\":[");
        array_mib = 4 * training_number(p.out, "parameters") / (1024 * 1024);
        program_close(&p);
    }
    ck_assert_double_eq_tol(peak[0] - peak[1], 1.5 * array_mib, 0.05 * array_mib);
    ck_assert_double_eq_tol(peak[0] - peak[2], 2.0 * array_mib, 0.05 * array_mib);
}
END_TEST

/* With a learning rate of 0 the weights stay: the loss of the training is another one, the test's
 * is not. */
START_TEST(labels_are_smoothed_in_training_alone)
{
    const char *modes[] = {"--mode=single", "--mode=dp"}, *shares[] = {"0", "0.5"};
    double train_loss[2], test_loss[2];
    for (int i = 0; i < 2; i++) {
        program p = program_run_with(NULL, WORDS("train", "--epochs=1", UNEVEN, "--model=mlp",
                                                 modes[_i], "--lr=0", "--label-smoothing",
                                                 shares[i], "--no-save-model", "--run-dir", "one"));
        ASSERT_EXIT(p, 0);
        train_loss[i] = number_after(&p, "train loss ");
        test_loss[i] = number_after(&p, "test loss ");
        program_close(&p);
    }
    ck_assert(test_loss[0] == test_loss[1]);
    ck_assert(fabs(train_loss[0] - train_loss[1]) > 1e-3);
}
END_TEST

/* Ranks that scale the rate of the command have the weights of those that were given the product.
 */
START_TEST(the_learning_rate_is_scaled_by_the_ranks)
{
    program p = program_run_with(NULL, WORDS("train", UNEVEN, "--model=mlp", "--epochs=1",
                                             "--optimizer=sgd", "--lr=0.25", "--scale-lr",
                                             "--nproc-per-node=2", "--run-dir", "one"));
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.out, "lr 0.5", "0.25 x 2 ranks");
    program_close(&p);
    p = program_run_with(NULL,
                         WORDS("train", UNEVEN, "--model=mlp", "--epochs=1", "--optimizer=sgd",
                               "--lr=0.5", "--nproc-per-node=2", "--run-dir", "many"));
    ASSERT_EXIT(p, 0);
    program_close(&p);
    model_file_assert_same_bits("many", "one");
}
END_TEST

START_TEST(accumulated_batches_are_one)
{
    const char *model = _i % 2 == 0 ? "mlp" : "cnn";
    train_and_close(model, 0,
                    WORDS(UNEVEN, "--mode=single", "--batch-size", "24", "--run-dir", "one"));
    if (_i < 2)
        train_and_close(model, 0,
                        WORDS(UNEVEN, "--mode=dp", "--replicas=3", "--batch-size", "8", "--accum",
                              "3", "--run-dir", "many"));
    else
        train_and_close(model, 0,
                        WORDS(UNEVEN, "--mode=ps", "--nproc-per-node=2", "--batch-size", "4",
                              "--accum", "3", "--run-dir", "many"));
    assert_same_weights(model, 0, "accumulated");
}
END_TEST

START_TEST(same_command_same_bits)
{
    const char *words[][2] = {{"--mode=dp", "--replicas=3"}, {"--mode=ps", "--nproc-per-node=3"}};
    const char *folders[] = {"one", "many"};
    for (int i = 0; i < 2; i++)
        train_and_close(
            "cnn", 2, WORDS("--limit", "300", words[_i][0], words[_i][1], "--run-dir", folders[i]));
    model_file_assert_same_bits("many", "one");
}
END_TEST

#define STOPPABLE \
    "train", "--model", "mlp", "--limit", "192", "--threads", "1", "--log-interval", "1000", \
        "--json"

static const struct {
    const char *mode, *flag;
    int rank; /* -1: the only process */
} STOPS[] = {
    {"--mode=dp", "--replicas=3", -1},
    {"--mode=single", "--seed=1", -1},
    {"--mode=ps", "--nproc-per-node=2", 0}, /* the server, */
    {"--mode=ps", "--nproc-per-node=2", 1}, /* and one that only it hears of */
    {"--mode=zero1", "--nproc-per-node=3", 0},
    {"--mode=zero1", "--nproc-per-node=3", 2}, /* in whose slice the wish is summed */
    {"--mode=fsdp", "--nproc-per-node=3", 1},
    {"--mode=pipeline", "--nproc-per-node=3", 1},
    {"--mode=model", "--replicas=3", -1},
    {"--mode=tp", "--nproc-per-node=3", 1},
};
enum { N_STOPS = sizeof STOPS / sizeof STOPS[0] };

START_TEST(a_stopped_run_ends_with_the_same_bits)
{
    program p =
        program_start_with(NULL, WORDS(STOPPABLE, STOPS[_i].mode, STOPS[_i].flag, "--epochs",
                                       "100000", "--save-every=1000epochs", "--run-dir", "many"));
    program_await(&p, "epoch 3/");
    kill(STOPS[_i].rank < 0 ? p.pid : process_of_rank(p.pid, STOPS[_i].rank), SIGUSR1);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 75);
    int epoch = facts_number(p.err, "stopped", "epoch"); /* that it is in, or has just done */
    ck_assert_int_ge(epoch, 2);
    char epochs[32];
    snprintf(epochs, sizeof epochs, "--epochs=%d", epoch + 2);
    program rest = program_run_with(NULL, WORDS(STOPPABLE, STOPS[_i].mode, STOPS[_i].flag, epochs,
                                                "--resume=auto", "--run-dir", "many"));
    ASSERT_EXIT(rest, 0);
    ASSERT_FACTS(rest.err, "resuming", program_flag("epoch ", epoch));
    program whole = program_run_with(
        NULL, WORDS(STOPPABLE, STOPS[_i].mode, STOPS[_i].flag, epochs, "--run-dir", "one"));
    ASSERT_EXIT(whole, 0);
    model_file_assert_same_bits("many", "one");
    program_close(&p);
    program_close(&rest);
    program_close(&whole);
}
END_TEST

/* An asynchronous server, whose ranks from 1 on train. */
#define ASYNC "--mode=ps", "--async"

/* One trainer has nobody to wait for: the server makes the steps of one process. */
START_TEST(one_trainer_has_the_bits_of_one_process)
{
    train_and_close("mlp", 1,
                    WORDS(UNEVEN, "--mode=single", "--batch-size=12", "--accum=2",
                          "--clip-grad-norm=0.5", "--epochs=2", "--run-dir", "one"));
    train_and_close("mlp", 1,
                    WORDS(UNEVEN, ASYNC, "--nproc-per-node=2", "--batch-size=12", "--accum=2",
                          "--clip-grad-norm=0.5", "--run-dir", "many"));
    train_and_close("mlp", 1,
                    WORDS(UNEVEN, ASYNC, "--nproc-per-node=2", "--batch-size=12", "--accum=2",
                          "--clip-grad-norm=0.5", "--epochs=2", "--resume", "--run-dir", "many"));
    model_file_assert_same_bits("many", "one");
    ck_assert_int_eq(system("cmp one/checkpoints/best/optimizer.safetensors "
                            "many/checkpoints/best/optimizer.safetensors"),
                     0);
}
END_TEST

/* With a bound of 0 the gradients of a step are all of the same weights. Plain SGD makes of them,
 * one after the other, what ddp makes of their mean with so many times the rate. */
START_TEST(a_bound_of_0_is_the_synchronous_step)
{
    const char *backend = _i == 1 && has_backend("gloo") ? "--backend=gloo" : "--backend=shm";
    train_and_close("mlp", 0,
                    WORDS(UNEVEN, "--mode=ddp", "--nproc-per-node=2", "--batch-size=12", "--lr=0.1",
                          "--run-dir", "one"));
    program p = train("mlp", 0,
                      WORDS(UNEVEN, ASYNC, "--staleness=0", "--nproc-per-node=3", "--batch-size=12",
                            "--lr=0.05", backend, "--run-dir", "many"));
    assert_same_weights("mlp", 0, "a bound of 0");
    ASSERT_FACTS(p.out, "\"pushes\":8", "\"allowed\":1", "\"most\":1", "[4,4]");
    ck_assert(training_number(p.out, "global_batch") == 24);
    program_close(&p);
}
END_TEST

/* Of rank 2, which is slow: rank 1 makes all its steps meanwhile, or as many as it may. */
START_TEST(no_push_is_staler_than_allowed)
{
    program p =
        train("mlp", 0,
              WORDS("--limit=192", ASYNC, "--nproc-per-node=3", "--batch-size=16",
                    "--inject=delay:rank=2,ms=120", _i == 0 ? "--seed=3" : "--staleness=1"));
    double sum = 0, most = number_after(&p, "\"most\":");
    char *at = strstr(p.out, "\"histogram\":[");
    ck_assert_ptr_nonnull(at);
    for (at += strlen("\"histogram\":"); *at != ']';)
        sum += strtod(at + 1, &at);
    ck_assert(sum == 12 && number_after(&p, "\"pushes\":") == 12);
    ck_assert_msg(_i == 0 ? most > 3 : most <= 3, "%g", most);
    program_close(&p);
}
END_TEST

/* Each push is a step: the server learns at least as much of an epoch as one that adds up. */
START_TEST(asynchronous_training_learns_as_much)
{
    double accuracy[2];
    for (int i = 0; i < 2; i++) {
        program p = train("mlp", 1,
                          WORDS("--epochs=8", "--mode=ps", "--nproc-per-node=3",
                                i == 0 ? "--no-async" : "--async"));
        accuracy[i] = training_number(p.out, "test_acc");
        program_close(&p);
    }
    ck_assert_msg(accuracy[1] > accuracy[0] - 0.02, "%g, synchronous %g", accuracy[1], accuracy[0]);
}
END_TEST

/* All trainers end after the same step, whoever is asked; and go on. */
START_TEST(asynchronous_trainers_stop_together)
{
    program p =
        program_start_with(NULL, WORDS(STOPPABLE, ASYNC, "--nproc-per-node=3", "--epochs", "100000",
                                       "--save-every=1000epochs", "--run-dir", "many"));
    program_await(&p, "epoch 3/");
    kill(process_of_rank(p.pid, _i), SIGUSR1);
    program_wait(&p, RUN_S);
    ASSERT_EXIT(p, 75);
    char epochs[32];
    snprintf(epochs, sizeof epochs, "--epochs=%d", facts_number(p.err, "stopped", "epoch") + 2);
    program rest = program_run_with(NULL, WORDS(STOPPABLE, ASYNC, "--nproc-per-node=3", epochs,
                                                "--resume=auto", "--run-dir", "many"));
    ASSERT_EXIT(rest, 0);
    program_close(&p);
    program_close(&rest);
}
END_TEST

START_TEST(a_killed_trainer_or_server_is_named)
{
    char inject[64], first[64];
    snprintf(inject, sizeof inject, "--inject=kill:rank=%d,step=3", _i);
    snprintf(first, sizeof first, "rank %d failed first", _i);
    program p = program_run_with(
        NULL, WORDS(STOPPABLE, ASYNC, "--nproc-per-node=3", inject, "--run-dir", "many"));
    ASSERT_EXIT(p, 137);
    ASSERT_FACTS(p.err, first, "SIGKILL");
    program_close(&p);
}
END_TEST

/* Not by its number among the ranks of its row or column. */
START_TEST(a_killed_rank_of_a_mesh_is_named)
{
    program p = program_run_with(NULL, WORDS(STOPPABLE, "--mode=tp", "--mesh=dp=2,tp=2",
                                             "--nproc-per-node=4", "--inject=kill:rank=3,step=3",
                                             "--run-dir", "many"));
    ASSERT_EXIT(p, 128 + SIGKILL);
    ASSERT_FACTS(p.err, "rank 3 failed first");
    ASSERT_FACTS(p.err, "rank 3 (pid", "is gone");
    ASSERT_NO_FACTS(p.err, "rank 1 (pid", "is gone");
    program_close(&p);
}
END_TEST

START_TEST(another_mode_does_not_resume)
{
    train_and_close("mlp", 0, WORDS(UNEVEN, "--mode=dp", "--replicas=3", "--run-dir", "one"));
    program p =
        program_mnist(TRAIN, "--model=mlp", UNEVEN, "--optimizer=sgd", "--lr=0.05", "--mode=dp",
                      "--replicas=2", "--epochs=2", "--resume", "--run-dir", "one", NULL);
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "error", "--replicas");
    program_close(&p);
}
END_TEST

#define ELASTIC "--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1"

static const struct {
    const char *flags[6], *facts[5]; /* the last is NULL */
} REFUSALS[] = {
    {{"--mode=dp", "--nproc-per-node=3"}, {"--mode=dp", "--replicas=3"}},
    {{"--mode=single", "--world-size=2"}, {"--mode=single", "--mode=ddp"}},
    {{"--mode=ps"}, {"--mode=ps", "--nproc-per-node=2"}},
    {{ASYNC}, {"server", "--nproc-per-node=2"}},
    {{ASYNC, "--world-size=3", "--eval-every=5steps"}, {"--async", "--eval-every=1epochs"}},
    {{ASYNC, "--world-size=3", "--save-every=5steps"}, {"--async", "--save-every=1epochs"}},
    {{ASYNC, "--world-size=3", "--global-batch-size=32"}, {"--async", "--batch-size"}},
    {{ASYNC, "--world-size=3", "--scale-lr"}, {"--async", "--scale-lr", "--lr"}},
    {{ASYNC, "--world-size=3", "--amp=fp16"}, {"--async", "--amp=bf16"}},
    {{ASYNC, "--world-size=3", "--comm-hook=bf16"}, {"--comm-hook", "ddp"}},
    {{"--mode=zero1"}, {"--mode=zero1", "--nproc-per-node=2"}},
    {{"--mode=pipeline"}, {"--mode=pipeline", "--nproc-per-node=2"}},
    {{"--mode=pipeline", "--world-size=4"}, {"cnn", "3 stages", "has 4", "--nproc-per-node=3"}},
    {{"--mode=pipeline", "--world-size=2", "--stages=3"}, {"--stages=3", "has 2", "--mesh"}},
    {{"--mode=ddp", "--world-size=4", "--mesh=dp=2,pp=2"}, {"--mesh", "ddp", "--mode=pipeline"}},
    {{"--mode=pipeline", "--world-size=4", "--mesh=dp=3,pp=2"},
     {"--mesh", "3 x 2", "--nproc-per-node=6"}},
    {{"--mode=pipeline", "--world-size=4", "--mesh=dp=2,tp=2"}, {"dp=ROWS,pp=COLUMNS"}},
    {{"--mode=fsdp", "--world-size=4", "--mesh=dp=4,fsdp=1"}, {"--mode=fsdp", "--mode=ddp"}},
    {{"--mode=pipeline", "--world-size=4", "--mesh=dp=2,pp=2x"}, {"dp=ROWS,pp=COLUMNS"}},
    {{"--mode=pipeline", "--world-size=2", "--mesh=dp=2,pp=1"}, {"no pipeline", "--mode=ddp"}},
    {{"--mode=pipeline", "--world-size=2", "--scale-lr"}, {"--scale-lr", "--lr"}},
    {{"--mode=pipeline", "--world-size=2", "--clip-grad-norm=1"}, {"--clip-grad-norm", "stage"}},
    {{"--mode=model", "--replicas=4"}, {"cnn", "3 devices", "has 4", "--replicas=3"}},
    {{"--mode=model", "--nproc-per-node=2"}, {"--mode=model", "2 ranks", "--replicas=2"}},
    {{"--mode=model", "--clip-grad-norm=1"}, {"--clip-grad-norm", "device"}},
    {{"--mode=model", "--amp=fp16"}, {"--amp=fp16", "--amp=bf16"}},
    {{"--mode=tp"}, {"--mode=tp", "--nproc-per-node=2"}},
    {{"--mode=tp", "--world-size=9"}, {"cnn", "8 ranks", "9", "--nproc-per-node=8"}},
    {{"--mode=tp", "--world-size=2", "--scale-lr"}, {"--scale-lr", "--lr"}},
    {{"--mode=tp", "--world-size=2", "--clip-grad-norm=1"}, {"--clip-grad-norm", "norm"}},
    {{"--mode=tp", "--world-size=2", "--amp=fp16"}, {"--amp=fp16", "--amp=bf16"}},
    {{"--mode=zero1", "--world-size=2", "--comm-hook=bf16"}, {"--comm-hook", "ddp"}},
    {{"--mode=ps", "--world-size=2", "--sync-every=4"}, {"--sync-every=4", "--mode=ddp", "ps"}},
    {{"--comm-hook=bf16", "--sync-every=4"}, {"--comm-hook=bf16", "--sync-every=4", "leave"}},
    {{"--amp=fp16", "--sync-every=4"}, {"--sync-every=4", "--amp=bf16"}},
    {{"--mode=fsdp"}, {"--mode=fsdp", "--nproc-per-node=2"}},
    {{"--mode=zero1", ELASTIC}, {"--nnodes=1:2", "--nnodes=2", "--nproc-per-node=2"}},
    {{"--mode=tp", "--mesh=dp=1,tp=2", ELASTIC}, {"--nnodes=1:2", "--nnodes=2", "has 1:"}},
    {{"--mode=fsdp", "--world-size=2", "--clip-grad-norm=1"}, {"--clip-grad-norm", "--mode=zero1"}},
    {{"--mode=fsdp", "--world-size=2", "--amp=fp16"}, {"--amp=fp16", "--amp=bf16"}},
    {{"--replicas=2"}, {"--replicas=2", "--mode=dp", "model"}},
    {{"--mode=ps", "--nproc-per-node=2", "--replicas=2"}, {"--replicas=2", "--mode=dp"}},
    {{"--mode=dp", "--backend=gloo"}, {"gloo", "--backend=local"}},
    {{"--mode=dp", "--backend=nccl"}, {"--device=cuda"}},
    {{"--backend=local"}, {"--backend=local", "--mode=dp", "shm"}},
    {{"--mode=pd"}, {"pd", "ddp", "dp", "ps"}},
    {{"--mode=dp", "--replicas=0"}, {"--replicas", "0", "64"}},
};
enum { N_REFUSALS = sizeof REFUSALS / sizeof REFUSALS[0] };

START_TEST(what_does_not_go_together_is_said)
{
    const char *argv[MAX_WORDS] = {"train", "--device=cpu", "--epochs=1"};
    for (int i = 0; i < 6; i++)
        argv[3 + i] = REFUSALS[_i].flags[i];
    program p = program_run_with(NULL, argv);
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS_LISTED(p.err, REFUSALS[_i].facts);
    ck_assert_msg(strstr(strstr(p.err, "error:") + 1, "error:") == NULL, "two errors: %s", p.err);
    program_close(&p);
}
END_TEST

/* A worker of torchrun, say. */
START_TEST(a_worker_is_refused_too)
{
    program p = program_run_with(WORDS("env", "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                                       "MASTER_PORT=1", "LOCAL_RANK=0"),
                                 WORDS("--mode=dp", "--epochs=1"));
    ASSERT_EXIT(p, 64);
    ASSERT_FACTS(p.err, "RANK", "WORLD_SIZE");
    program_close(&p);
}
END_TEST

int main(void)
{
    test_folder_open();
    Suite *suite = suite_create("modes");
    TCase *weights = suite_case(suite, "weights", 120);
    tcase_add_checked_fixture(weights, test_folder_clean, NULL);
    tcase_add_loop_test(weights, modes_equal_one_process, 0, 6);
    tcase_add_loop_test(weights, the_matrix_equals_one_process, 0, 9);
    tcase_add_loop_test(weights, replicas_may_be_idle, 0, 2);
    tcase_add_loop_test(weights, one_replica_is_one_process, 0, 2);
    tcase_add_loop_test(weights, clipped_steps_equal_one_process, 0, 2);
    tcase_add_test(weights, clipped_ranks_have_the_bits_of_a_server);
    tcase_add_loop_test(weights, slices_have_the_bits_of_ddp, 0, 6);
    tcase_add_loop_test(weights, sharded_layers_have_the_bits_of_ddp, 0, 4);
    tcase_add_test(weights, slices_and_whole_states_resume_each_other);
    tcase_add_loop_test(weights, devices_with_parts_have_the_bits_of_one, 0, 4);
    tcase_add_test(weights, devices_with_parts_resume_and_begin_as_one);
    tcase_add_loop_test(weights, stages_have_the_bits_of_accumulated_batches, 0, 8);
    tcase_add_test(weights, shards_begin_as_ddp);
    tcase_add_loop_test(weights, rows_of_pipelines_have_the_bits_of_ddp, 0, 4);
    tcase_add_loop_test(weights, a_pipeline_equals_one_process, 0, 6);
    tcase_add_loop_test(weights, a_pipelines_steps_have_the_loss_of_one_process, 0, 2);
    tcase_add_test(weights, stages_resume_and_begin_as_one_process);
    tcase_add_loop_test(weights, shards_equal_one_process, 0, 6);
    tcase_add_loop_test(weights, rows_of_shards_equal_one_process, 0, 2);
    tcase_add_test(weights, resumed_shards_have_the_same_bits);
    tcase_add_test(weights, shards_and_whole_states_resume_each_other);
    tcase_add_test(weights, only_the_server_has_the_optimizers_state);
    tcase_add_test(weights, each_rank_has_the_state_of_its_slice);
    tcase_add_test(weights, each_rank_has_a_slice_of_all);
    tcase_add_loop_test(weights, labels_are_smoothed_in_training_alone, 0, 2);
    tcase_add_test(weights, the_learning_rate_is_scaled_by_the_ranks);
    tcase_add_loop_test(weights, accumulated_batches_are_one, 0, 4);
    tcase_add_loop_test(weights, same_command_same_bits, 0, 2);
    TCase *stops = suite_case(suite, "stops", 120);
    tcase_add_checked_fixture(stops, test_folder_clean, NULL);
    tcase_add_loop_test(stops, a_stopped_run_ends_with_the_same_bits, 0, N_STOPS);
    tcase_add_test(stops, another_mode_does_not_resume);
    tcase_add_test(stops, a_killed_rank_of_a_mesh_is_named);
    TCase *server = suite_case(suite, "async", 60);
    tcase_add_checked_fixture(server, test_folder_clean, NULL);
    tcase_add_test(server, one_trainer_has_the_bits_of_one_process);
    tcase_add_loop_test(server, a_bound_of_0_is_the_synchronous_step, 0, 2);
    tcase_add_loop_test(server, no_push_is_staler_than_allowed, 0, 2);
    tcase_add_test(server, asynchronous_training_learns_as_much);
    tcase_add_loop_test(server, asynchronous_trainers_stop_together, 0, 3);
    tcase_add_loop_test(server, a_killed_trainer_or_server_is_named, 0, 3);
    TCase *refusals = suite_case(suite, "refusals", 30);
    tcase_add_loop_test(refusals, what_does_not_go_together_is_said, 0, N_REFUSALS);
    tcase_add_test(refusals, a_worker_is_refused_too);
    return test_folder_close(suite_run(suite));
}
