/* torchrun's own variables: PET_<NAME> for every flag of the launcher that torchrun has. */
#ifndef MNIST_DDP_APP_OPTIONS_OPTIONS_TORCHRUN_H
#define MNIST_DDP_APP_OPTIONS_OPTIONS_TORCHRUN_H

#include "app/options/options.h"

/* Takes PET_NNODES, PET_MASTER_ADDR and so on; an empty one is not set. MNIST_DDP_<NAME>, read
 * afterwards, wins over them. */
status options_torchrun_read(options *opts);

#endif
