/* mnist_ddp data fetch: what is missing of a data set, from its mirrors. */
#ifndef MNIST_DDP_APP_DATA_FETCH_H
#define MNIST_DDP_APP_DATA_FETCH_H

#include "app/options/options.h"
#include "data/dataset.h"

/* Returns the exit code. However many processes call this at once for a folder, one fetches. */
int fetch(const options *opts, dataset_kind kind);

#endif
