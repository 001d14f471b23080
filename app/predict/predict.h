/* A model that a run has left, ready to classify: predict and serve open it alike. */
#ifndef MNIST_DDP_APP_PREDICT_PREDICT_H
#define MNIST_DDP_APP_PREDICT_PREDICT_H

#include "app/options/options.h"
#include "base/file.h"
#include "data/dataset.h"
#include "model/classifier.h"

typedef struct trained_model {
    char path[FILE_PATH_BYTES]; /* a safetensors file, or a run's or a checkpoint's folder */
    const dataset_facts
        *dataset; /* what it was trained on, as far as is known: names its classes */
    char data_folder[FILE_PATH_BYTES]; /* the run's, if it is there; "": not known */
    device *dev;
    classifier *classifier; /* NULL before trained_model_load */
} trained_model;

/* Opens the device that the options name. `path`: NULL is the newest model in runs/. On failure
 * *exit_code says what kind; `out` may be closed. */
status trained_model_open(const options *opts, const char *path, trained_model *out,
                          int *exit_code);

/* Loads the model, or loads it again. On failure the one that was there stays. */
status trained_model_load(const options *opts, trained_model *model);

/* Accepts a zeroed one. */
void trained_model_close(trained_model *model);

/* Prints an answer for each image that opts->files names. The exit code: of the last file that
 * could not be read, if there was one. */
int predict_command(const options *opts);

#endif
