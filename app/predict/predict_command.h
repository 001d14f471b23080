/* mnist_ddp predict: what a trained model takes pictures for. */
#ifndef MNIST_DDP_APP_PREDICT_PREDICT_COMMAND_H
#define MNIST_DDP_APP_PREDICT_PREDICT_COMMAND_H

#include "app/options/options.h"

/* Prints an answer for each image that opts->files names. Returns the exit code: of the last file
 * that could not be read, if there was one. */
int predict_command(const options *opts);

#endif
