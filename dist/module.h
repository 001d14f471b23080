/* Backends that need foreign libraries are modules, shared objects opened at run time: the program
 * starts fast, and also where those libraries are missing. */
#ifndef MNIST_DDP_DIST_MODULE_H
#define MNIST_DDP_DIST_MODULE_H

#include "dist/process_group_ops.h"

/* Opens mnist_ddp_<name>.so and sets *out to its table, which stays valid: modules are never
 * closed. Looked for in $MNIST_DDP_<NAME>_MODULE (a file; nothing else is tried then), beside the
 * executable, and in ../lib/mnist_ddp from there. STATUS_INVALID, with the files looked for, where
 * there is none; STATUS_IO where it does not load, with the loader's reason. */
status module_open(const char *name, const process_group_ops **out);

#endif
