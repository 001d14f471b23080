/* One global batch, trained on in all modes, from the same weights. */
#include "app/common/run_files.h"
#include "app/demo/demo.h"
#include "base/json_text.h"
#include "model/checkpoint.h"
#include "model/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 60, STEPS = 3, MODES = 4, METRICS_BYTES = 1 << 16 };

static const char *const MODE_NAMES[MODES] = {"single", "dp", "ddp", "ps"};

typedef struct one_batch {
    demo *d;
    int batch;                          /* the global one */
    char lines[MODES][DEMO_LINE_BYTES]; /* the commands */
    double losses[MODES][STEPS];        /* the batch's, before each step */
    safetensors *models[MODES];         /* after all of them */
} one_batch;

/* Each epoch is the one batch: so its mean loss over all ranks is that of a step. */
static status read_losses(one_batch *b, double losses[STEPS])
{
    char path[FILE_PATH_BYTES], *text = NULL, *line;
    size_t size_bytes = 0;
    int steps = 0;
    training_run_path(b->d, "run/" RUN_FILE_METRICS, path);
    TRY(file_read(path, METRICS_BYTES, &text, &size_bytes));
    for (char *rest = text; (line = strsep(&rest, "\n")) != NULL;) {
        json_t *entry = json_text_parse(line, strlen(line), 0, NULL);
        const json_t *loss = json_object_get(entry, "train_loss");
        if (json_is_number(loss) && steps < STEPS)
            losses[steps++] = json_number_value(loss);
        json_decref(entry);
    }
    free(text);
    return steps == STEPS ? STATUS_OK : FAIL(STATUS_INVALID, "%s has no %d losses", path, STEPS);
}

static status train(one_batch *b, int mode)
{
    char path[FILE_PATH_BYTES], devices[32] = "";
    int ranks = b->d->world_size;
    bool has_ranks = mode >= 2;
    if (mode > 0)
        snprintf(devices, sizeof devices, " %s=%d", has_ranks ? "--nproc-per-node" : "--replicas",
                 ranks);
    TRY(training_run_do(b->d,
                        "--mode=%s%s --batch-size=%d -- --limit=%d --epochs=%d "
                        "--save-every=%depochs --optimizer=sgd --lr=0.05",
                        MODE_NAMES[mode], devices, has_ranks ? b->batch / ranks : b->batch,
                        b->batch, STEPS, STEPS));
    snprintf(b->lines[mode], DEMO_LINE_BYTES, "%s", b->d->child.line);
    TRY(read_losses(b, b->losses[mode]));
    training_run_path(b->d, "run/" CHECKPOINT_MODEL, path);
    return safetensors_open(path, &b->models[mode]);
}

static status show_start(one_batch *b)
{
    demo_begin(b->d, "One batch of %d images, four ways", b->batch);
    demo_say(b->d,
             "The same weights at the start, the same batch, the same optimizer: then it "
             "should not matter who computes which part of the batch. %d steps of each, for "
             "real:",
             STEPS);
    for (int mode = 0; mode < MODES && b->d->rank == 0; mode++)
        demo_say(b->d, "%s", b->lines[mode]);
    return demo_show(b->d);
}

/* As metrics.jsonl has it, with all its digits. */
static status show_losses(one_batch *b)
{
    char rows[MODES][64];
    bool same = true;
    demo_begin(b->d, "The loss, as each of them prints it");
    demo_columns(b->d, "--mode|step 1|step 2|step 3");
    for (int mode = 0; mode < MODES && b->d->rank == 0; mode++) {
        const double *loss = b->losses[mode];
        snprintf(rows[mode], sizeof rows[mode], "%.7g|%.7g|%.7g", loss[0], loss[1], loss[2]);
        same = same && strcmp(rows[mode], rows[0]) == 0;
        demo_row(b->d, "%s|%s", MODE_NAMES[mode], rows[mode]);
        demo_fact(b->d, MODE_NAMES[mode], json_pack("[f, f, f]", loss[0], loss[1], loss[2]));
    }
    demo_say(b->d, same ? "All are the same, to the last of the digits that are printed."
                        : "Some differ in the last digits. The next page says why.");
    return demo_show(b->d);
}

/* How far two models are apart, at most, in any weight. */
static double distance(const safetensors *a, const safetensors *b)
{
    const safetensors_tensor *tensors;
    size_t n = safetensors_list(a, &tensors);
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        const safetensors_tensor *other = safetensors_lookup(b, tensors[i].name);
        size_t count = 1;
        for (int k = 0; k < tensors[i].rank; k++)
            count *= (size_t)tensors[i].shape[k];
        for (size_t k = 0; k < count && other != NULL; k++)
            most = fmax(most, fabs((double)tensors[i].data[k] - (double)other->data[k]));
    }
    return most;
}

static status show_weights(one_batch *b)
{
    char text[32];
    demo_begin(b->d, "The weights after %d steps", STEPS);
    demo_say(b->d, "The digits that are not printed may differ. A sum of floats is rounded after "
                   "each addition, and here the gradients of the images are added in another "
                   "order. Nobody promises the same bits in two modes, and none is more right. "
                   "The same command twice gives the same bits.");
    demo_columns(b->d, "--mode|largest difference of a weight to single's");
    for (int mode = 0; mode < MODES && b->d->rank == 0; mode++) {
        double most = distance(b->models[0], b->models[mode]);
        snprintf(text, sizeof text, most > 0 ? "%.2g" : "0: the same bits", most);
        demo_row(b->d, "%s|%s", MODE_NAMES[mode], mode == 0 ? "-" : text);
        snprintf(text, sizeof text, "%s_distance", MODE_NAMES[mode]);
        demo_fact(b->d, text, json_real(most));
    }
    if (b->d->rank == 0)
        demo_fact(b->d, "ddp_to_ps", json_real(distance(b->models[2], b->models[3])));
    return demo_show(b->d);
}

static status show_all(one_batch *b)
{
    for (int mode = 0; mode < MODES && b->d->rank == 0; mode++)
        TRY(train(b, mode));
    TRY(show_start(b));
    TRY(show_losses(b));
    return show_weights(b);
}

static int batch_of(const options *opts)
{
    return options_given(opts, "batch_size") ? (int)opts->batch_size : BATCH;
}

status one_batch_four_ways_check_demo(const options *opts, int world_size)
{
    return batch_of(opts) % world_size == 0
               ? STATUS_OK
               : FAIL(STATUS_INVALID,
                      "demo one-batch-four-ways: a batch of %d cannot be cut into %d equal parts: "
                      "give another --batch-size",
                      batch_of(opts), world_size);
}

status one_batch_four_ways_demo(demo *d)
{
    one_batch b = {.d = d, .batch = batch_of(d->opts)};
    status st = show_all(&b);
    for (int mode = 0; mode < MODES; mode++)
        safetensors_close(b.models[mode]);
    return st;
}
