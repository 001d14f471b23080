/* mnist_ddp data show: images of a data set, with index and label. */
#ifndef MNIST_DDP_APP_DATA_SHOW_H
#define MNIST_DDP_APP_DATA_SHOW_H

#include "app/options/options.h"
#include "data/dataset_kind.h"

/* Returns the exit code. */
int show(const options *opts, dataset_kind kind);

#endif
