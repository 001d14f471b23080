#include "app/predict/trained_model.h"

#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/common/run_config.h"
#include "app/common/run_files.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BATCH = 64 };

/* What the run's settings say; `kind` stays if they name none. */
static status read_settings(const run_config *config, dataset_kind *kind,
                            char data_folder[FILE_PATH_BYTES])
{
    char *name = NULL, *folder = NULL;
    option_source origin;
    bool found = false, given = false;
    TRY(run_config_setting(config, "dataset", &found, &name, &origin));
    status st = name != NULL ? dataset_kind_parse(name, kind) : STATUS_OK;
    free(name);
    TRY(st);
    TRY(run_config_data_folder(config, &folder, &given));
    if (folder != NULL && strlen(folder) < FILE_PATH_BYTES && file_exists(folder))
        strcpy(data_folder, folder);
    free(folder);
    return STATUS_OK;
}

/* --dataset, else that of the run which the model is of, else MNIST. */
static status find_dataset(const options *opts, trained_model *model)
{
    char run[FILE_PATH_BYTES];
    run_config config = {0};
    const bool given = options_given(opts, "dataset");
    dataset_kind kind = DATASET_MNIST, trained_on = DATASET_MNIST;
    model->data_folder[0] = '\0';
    status st = run_config_find(model->path, run, &config);
    if (st == STATUS_OK && config.document != NULL)
        st = read_settings(&config, &trained_on, model->data_folder);
    run_config_close(&config);
    if (st == STATUS_NO_MEMORY)
        return st;
    if (st != STATUS_OK && !given)
        LOG_W("the names of the classes are not taken from the run: %s", status_text());
    if (given)
        TRY(dataset_kind_parse(opts->dataset, &kind));
    else
        kind = trained_on;
    if (kind != trained_on)
        model->data_folder[0] = '\0';
    model->dataset = dataset_kind_facts(kind);
    return STATUS_OK;
}

status trained_model_open(const options *opts, const char *path, trained_model *out, int *exit_code)
{
    *out = (trained_model){.dataset = dataset_kind_facts(DATASET_MNIST)};
    *exit_code = EXIT_CODE_CHECKPOINT;
    TRY(runs_folder_model(path, out->path));
    *exit_code = EXIT_CODE_USAGE;
    TRY(device_list_open(opts, 0, 0, &out->dev));
    *exit_code = EXIT_CODE_CHECKPOINT;
    return STATUS_OK;
}

status trained_model_load(const options *opts, trained_model *model)
{
    trained_model loaded = *model;
    TRY(classifier_create(model->dev, model->path, MAX_BATCH, &loaded.classifier));
    status st = find_dataset(opts, &loaded);
    if (st != STATUS_OK) {
        classifier_destroy(loaded.classifier);
        return st;
    }
    classifier_destroy(model->classifier);
    *model = loaded;
    return STATUS_OK;
}

void trained_model_close(trained_model *model)
{
    classifier_destroy(model->classifier);
    device_destroy(model->dev);
    *model = (trained_model){0};
}
