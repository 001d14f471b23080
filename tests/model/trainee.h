/* What checkpoint tests save and find again. */
#ifndef MNIST_DDP_TESTS_MODEL_TRAINEE_H
#define MNIST_DDP_TESTS_MODEL_TRAINEE_H

#include "kernels/device_kind.h"
#include "model/checkpoint.h"
#include "tests/model/scratch.h"

#include <check.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

/* A network with an optimizer; all arenas hold numbers that a step number determines. */
typedef struct trainee {
    device *dev;
    network *net;
    optimizer *opt;
} trainee;

static inline status trainee_open(trainee *t, const char *device_name, model_kind kind,
                                  optimizer_kind trained_by, uint64_t seed)
{
    network_options net = {.kind = kind, .max_batch = 1, .seed = seed};
    optimizer_options opt = {.kind = trained_by,
                             .momentum = trained_by == OPTIMIZER_SGD ? 0.9f : 0.0f};
    device_options wanted = {.name = device_name, .threads = 1};
    TRY(device_create(&wanted, &t->dev));
    TRY(network_create(t->dev, &net, &t->net));
    const optimizer_part all = {network_parameters(t->net), network_gradients(t->net),
                                .count = network_count(t->net)};
    return optimizer_create(t->dev, &opt, &all, &t->opt);
}

static inline void trainee_init(trainee *t, model_kind kind, optimizer_kind trained_by,
                                uint64_t seed)
{
    ck_assert_msg(trainee_open(t, "reference", kind, trained_by, seed) == STATUS_OK, "%s",
                  status_text());
}

static inline void trainee_close(trainee *t)
{
    optimizer_destroy(t->opt);
    network_destroy(t->net);
    device_destroy(t->dev);
}

/* The arenas, parameters first. */
static inline size_t arenas_of(trainee *t, float **arenas)
{
    const char *names[OPTIMIZER_MAX_STATES];
    arenas[0] = network_parameters(t->net);
    return 1 + optimizer_states(t->opt, names, arenas + 1);
}

/* Fills (or, with `check`, compares) everything with the numbers of `step`. */
static inline bool stamp(trainee *t, int64_t step, bool check)
{
    float *arenas[1 + OPTIMIZER_MAX_STATES];
    size_t n = arenas_of(t, arenas), count = network_count(t->net);
    float *host = malloc(sizeof *host * count);
    bool same = true;
    ck_assert_ptr_nonnull(host);
    for (size_t a = 0; a < n; a++) {
        if (check)
            ck_assert_int_eq(network_export(t->net, arenas[a], host), STATUS_OK);
        for (size_t i = 0; i < count; i++) {
            float want = (float)((size_t)step * 1000 + a * 100 + i % 97);
            same = same && (!check || host[i] == want);
            host[i] = want;
        }
        if (!check)
            ck_assert_int_eq(network_import(t->net, host, arenas[a]), STATUS_OK);
    }
    free(host);
    if (check)
        return same && optimizer_steps(t->opt) == step;
    optimizer_set_steps(t->opt, step);
    return true;
}

static inline checkpoint_state state_of(int64_t step)
{
    return (checkpoint_state){.model = MODEL_MLP,
                              .optimizer = OPTIMIZER_SGD,
                              .at = {.epoch = 3, .step_in_epoch = step % 938, .step = step},
                              .seed = UINT64_MAX,
                              .world = {2, 64, 1, 0.1 / 3.0},
                              .gamma = 0.7,
                              .momentum = 0.9,
                              .weight_decay = 1e-4,
                              .config_hash = "00ff12",
                              .optimizer_steps = step};
}

static trainee mlp;

static inline void setup(void)
{
    scratch_create();
    trainee_init(&mlp, MODEL_MLP, OPTIMIZER_SGD, 1);
}

static inline void teardown(void)
{
    trainee_close(&mlp);
    scratch_remove();
}

static inline const char *in_scratch(const char *name)
{
    static char path[FILE_PATH_BYTES];
    ck_assert_int_eq(file_join(scratch, name, path), STATUS_OK);
    return path;
}

static inline void save(int64_t step)
{
    checkpoint_state state = state_of(step);
    stamp(&mlp, step, false);
    ck_assert_msg(checkpoint_save(scratch, &state, mlp.net, mlp.opt, NULL) == STATUS_OK, "%s",
                  status_text());
}

static inline void expect_same(const checkpoint_state *a, const checkpoint_state *b)
{
    ck_assert(a->model == b->model && a->optimizer == b->optimizer);
    ck_assert(a->at.epoch == b->at.epoch && a->at.step_in_epoch == b->at.step_in_epoch);
    ck_assert_int_eq(a->at.step, b->at.step);
    ck_assert(a->seed == b->seed);
    ck_assert(a->world.size == b->world.size && a->world.batch_size == b->world.batch_size);
    ck_assert(a->world.accum == b->world.accum && a->optimizer_steps == b->optimizer_steps);
    ck_assert(a->world.lr == b->world.lr &&
              a->gamma == b->gamma); /* every bit, through decimal and back */
    ck_assert(a->momentum == b->momentum && a->weight_decay == b->weight_decay);
    ck_assert_str_eq(a->config_hash, b->config_hash);
}

/* The newest checkpoint is that of `step`, and all of it belongs together. */
static inline void expect_newest(int64_t step)
{
    bool found = false;
    char path[FILE_PATH_BYTES];
    checkpoint_state state = {0}, want = state_of(step);
    ck_assert_msg(checkpoint_find(scratch, CHECKPOINT_NEWEST, &found, &state, path) == STATUS_OK,
                  "%s", status_text());
    ck_assert(found);
    expect_same(&state, &want);
    stamp(&mlp, 0, false);
    ck_assert_msg(checkpoint_load(path, mlp.net, mlp.opt, NULL) == STATUS_OK, "%s", status_text());
    ck_assert(stamp(&mlp, step, true));
}

/* How many names the folder of checkpoints holds. */
static inline int count_names(void)
{
    int n = -2; /* . and .. */
    DIR *dir = opendir(in_scratch("checkpoints"));
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

#endif
