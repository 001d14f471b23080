#include "app/predict/trained_model.h"

#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/common/run_config.h"
#include "app/common/runs_folder.h"
#include "base/log.h"

#include <stdlib.h>

enum { MAX_BATCH = 64 };

/* That of the run which the model is of; none if its config.json cannot be read. */
static status dataset_of_run(const char *path, dataset_kind *out)
{
    char run[FILE_PATH_BYTES], *name = NULL;
    run_config config = {0};
    option_source origin;
    bool found = false;
    status st = run_config_find(path, run, &config);
    if (st == STATUS_OK && config.document != NULL)
        st = run_config_setting(&config, "dataset", &found, &name, &origin);
    if (st == STATUS_OK && name != NULL)
        st = dataset_kind_parse(name, out);
    free(name);
    run_config_close(&config);
    if (st == STATUS_OK || st == STATUS_NO_MEMORY)
        return st;
    LOG_W("the names of the classes are not taken from the run: %s", status_text());
    return STATUS_OK;
}

/* --dataset, else that of the run, else MNIST. */
static status find_dataset(const options *opts, const char *path, const dataset_facts **out)
{
    dataset_kind kind = DATASET_MNIST;
    TRY(options_given(opts, "dataset") ? dataset_kind_parse(opts->dataset, &kind)
                                       : dataset_of_run(path, &kind));
    *out = dataset_kind_facts(kind);
    return STATUS_OK;
}

status trained_model_open(const options *opts, const char *path, trained_model *out, int *exit_code)
{
    *out = (trained_model){.dataset = dataset_kind_facts(DATASET_MNIST)};
    *exit_code = EXIT_CODE_CHECKPOINT;
    TRY(runs_folder_model(path, opts->quiet, out->path));
    *exit_code = EXIT_CODE_USAGE;
    TRY(device_list_open(opts, 0, 0, &out->dev));
    *exit_code = EXIT_CODE_CHECKPOINT;
    return STATUS_OK;
}

status trained_model_load(const options *opts, trained_model *model)
{
    classifier *loaded = NULL;
    TRY(find_dataset(opts, model->path, &model->dataset));
    TRY(classifier_create(model->dev, model->path, MAX_BATCH, &loaded));
    classifier_destroy(model->classifier);
    model->classifier = loaded;
    return STATUS_OK;
}

void trained_model_close(trained_model *model)
{
    classifier_destroy(model->classifier);
    device_destroy(model->dev);
    *model = (trained_model){0};
}
