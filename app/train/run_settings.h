/* The settings of a run that is continued. What the command does not give is taken from the run's
 * config.json, so that --run-dir and --resume alone go on with all its settings. What it gives must
 * fit the run: of some settings a run has one value from its first step to its last, as it has to
 * end with the bits of a run that was never interrupted. */
#ifndef MNIST_DDP_APP_TRAIN_RUN_SETTINGS_H
#define MNIST_DDP_APP_TRAIN_RUN_SETTINGS_H

#include "app/options/options.h"

/* Between options_read and options_check. Does nothing unless `train` is to continue a run
 * (--resume) and its folder has checkpoints and a config.json.
 *
 * Taken are the settings of training, device, data and parallelism, with their origins, and the
 * number of ranks if all of them were on one host; not those of the log, the launcher, faults and
 * dry runs, and not --target-acc, at which the run has stopped. Each setting that is given and
 * differs is logged, from what to what.
 *
 * STATUS_INVALID if one of them must not differ, or if what the file has for a setting is no value
 * of it; STATUS_NO_MEMORY. A config.json that cannot be read, or is not one, is a warning: nothing
 * is taken, and the checkpoint's own check remains (app/train/run_folder.h). */
status run_settings_complete(options *opts);

/* Between options_read and options_check. Does nothing unless the command is `eval`. The checkpoint
 * is RUN, else --checkpoint, else the newest in runs/. If it lies in the folder of a run with a
 * config.json, --dataset and --data-dir are taken from there if they are not given; the folder that
 * the run has found by itself only without $MNIST_DDP_DATA.
 *
 * Warnings: another data set that is given, a --data-dir of the run that is not there any more,
 * and a config.json that cannot be read. STATUS_INVALID if there is no model in runs/,
 * STATUS_IO, STATUS_NO_MEMORY. */
status run_settings_complete_eval(options *opts);

#endif
