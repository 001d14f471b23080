/* A configuration file: flat YAML, "key: value" with scalars only. */
#ifndef MNIST_DDP_APP_OPTIONS_CONFIG_H
#define MNIST_DDP_APP_OPTIONS_CONFIG_H

#include "app/options/options.h"
#include "base/status.h"

/* Takes PET_NNODES, PET_MASTER_ADDR and so on; an empty one is not set. MNIST_DDP_<NAME>, read
 * afterwards, wins over them. */
status options_torchrun_read(options *opts);

/* Takes one setting. `where` is "file:line". */
typedef status (*config_fn)(void *ctx, const char *key, const char *value, const char *where);

/* Calls `take` for every setting, top to bottom, and passes its first failure on.
 * STATUS_INVALID, "file:line: ..." for what is not YAML, not a map, nested, or empty. */
status config_read(const char *path, config_fn take, void *ctx);

#endif
