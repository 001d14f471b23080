/* A configuration file: flat YAML, "key: value" with scalars only. */
#ifndef MNIST_DDP_APP_OPTIONS_CONFIG_H
#define MNIST_DDP_APP_OPTIONS_CONFIG_H

#include "base/status.h"

/* Takes one setting. `where` is "file:line". */
typedef status (*config_fn)(void *ctx, const char *key, const char *value, const char *where);

/* Calls `take` for every setting, top to bottom, and passes its first failure on.
 * STATUS_INVALID, "file:line: ..." for what is not YAML, not a map, nested, or empty. */
status config_read(const char *path, config_fn take, void *ctx);

#endif
