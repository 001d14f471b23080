/* The model that `eval` tests, and what it takes from the run that the model is of: the data set
 * that it was trained on, and its folder. */
#ifndef MNIST_DDP_APP_TRAIN_EVAL_SETTINGS_H
#define MNIST_DDP_APP_TRAIN_EVAL_SETTINGS_H

#include "app/options/options.h"

/* Between options_read and options_check. Does nothing unless the command is `eval`. The checkpoint
 * is RUN, else --checkpoint, else the newest in runs/. If it lies in the folder of a run with a
 * config.json, --dataset and --data-dir are taken
 * from there if they are not given; the folder that the run has found by itself only without
 * $MNIST_DDP_DATA.
 *
 * Warnings: another data set that is given, a --data-dir of the run that is not there any more,
 * and a config.json that cannot be read. STATUS_INVALID if there is no model in runs/,
 * STATUS_IO, STATUS_NO_MEMORY. */
status eval_settings_complete(options *opts);

#endif
