/* What all nodes of a training are to be given alike, as they are told to be compared. */
#ifndef MNIST_DDP_APP_OPTIONS_OPTIONS_ALIKE_H
#define MNIST_DDP_APP_OPTIONS_OPTIONS_ALIKE_H

#include "app/options/options.h"

enum { OPTIONS_ALIKE_BYTES = 2048 };

/* A line for each setting that changes what is trained, in the table's order: "--epochs=14",
 * "no --limit". What has no room is left out. */
void options_alike(const options *opts, char out[OPTIONS_ALIKE_BYTES]);

#endif
