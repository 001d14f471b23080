#include "app/common/commands.h"
#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/train/eval_document.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "model/classifier.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct evaluated {
    const options *opts;
    device *dev;
    classifier *model;
    dataset_location location;
    dataset set;
    float *logits;
    double elapsed_s;
    tally tally;
} evaluated;

static status open_device(evaluated *e)
{
    TRY(device_list_open(e->opts, 0, 0, &e->dev));
    if (e->dev->stream != NULL)
        LOG_V("computing on %s", e->dev->description);
    return STATUS_OK;
}

static status open_model(evaluated *e)
{
    return classifier_create(e->dev, e->opts->checkpoint, (int)e->opts->test_batch_size, &e->model);
}

static status open_data(evaluated *e)
{
    dataset_kind kind;
    TRY(dataset_kind_parse(e->opts->dataset, &kind));
    TRY(dataset_locate(kind, e->opts->data_dir, &e->location));
    return dataset_open(&e->location, DATASET_TEST, &e->set);
}

static status classify(evaluated *e)
{
    size_t n = e->set.count;
    TRY(memory_alloc(n * NETWORK_CLASSES * sizeof *e->logits, (void **)&e->logits));
    int64_t started = clock_now_ns();
    TRY(classifier_run(e->model, e->set.images, n, e->logits));
    e->elapsed_s = clock_seconds(clock_now_ns() - started);
    e->tally = tally_of(&e->set, e->logits);
    return STATUS_OK;
}

static void print_text(const evaluated *e)
{
    const tally *t = &e->tally;
    char name[FILE_PATH_BYTES], folder[FILE_PATH_BYTES], text[3 * FILE_PATH_BYTES];
    printable_copy(PRINTABLE_LINE, e->opts->checkpoint, name, sizeof name);
    printable_copy(PRINTABLE_LINE, e->location.folder, folder, sizeof folder);
    snprintf(text, sizeof text, "%s: %s, accuracy %.2f%% (%lld/%lld), loss %.4f on %s%s", name,
             model_kind_name(network_kind(classifier_network(e->model))), 100 * tally_accuracy(t),
             (long long)t->correct, (long long)t->images, tally_loss(t), folder,
             e->location.embedded ? " (generated digits, NOT MNIST)" : "");
    paragraph_print_line(stdout, 0, 0, text);
    if (!e->opts->quiet)
        tally_print(t, dataset_kind_facts(e->location.kind)->classes, stdout);
}

static status save(const json_t *document, const char *folder)
{
    TRY(file_make_folders(folder));
    return eval_document_save(document, folder);
}

/* On stdout, and into the folder --out. */
static status put_out(evaluated *e)
{
    const eval_subject subject = {.net = classifier_network(e->model),
                                  .step = -1,
                                  .location = &e->location,
                                  .set = &e->set,
                                  .logits = e->logits};
    json_t *document = NULL;
    if (!e->opts->json)
        print_text(e);
    if (!e->opts->json && e->opts->out == NULL)
        return STATUS_OK;
    TRY(eval_document_make(&subject, &e->tally, &document));
    status st = e->opts->out != NULL ? save(document, e->opts->out) : STATUS_OK;
    if (st != STATUS_OK || !e->opts->json) {
        json_decref(document);
        return st;
    }
    json_object_set_new(document, "eval_s", json_value_rounded(e->elapsed_s, 4));
    return json_value_print(document);
}

int eval_command(const options *opts)
{
    static const struct {
        status (*go)(evaluated *);
        int exit_code;
    } steps[] = {{open_device, EXIT_CODE_USAGE},
                 {open_model, EXIT_CODE_CHECKPOINT},
                 {open_data, EXIT_CODE_DATA},
                 {classify, EXIT_CODE_INTERNAL},
                 {put_out, EXIT_CODE_CHECKPOINT}};
    evaluated e = {.opts = opts};
    status st = STATUS_OK;
    int exit_code = EXIT_SUCCESS;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && st == STATUS_OK; i++) {
        st = steps[i].go(&e);
        exit_code = steps[i].exit_code;
    }
    if (st != STATUS_OK)
        exit_code = exit_code_failed(st, exit_code);
    free(e.logits);
    dataset_close(&e.set);
    classifier_destroy(e.model);
    device_destroy(e.dev);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code;
}
