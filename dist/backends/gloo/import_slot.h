/* One shared library's own entry for a function that it imports.
 *
 * A library calls functions of others through a table of pointers (its global offset table), which
 * the dynamic linker fills in, one slot for each function. Another pointer in one slot changes what
 * this library calls, and nothing else in the process.
 */
#ifndef MNIST_DDP_DIST_BACKENDS_GLOO_IMPORT_SLOT_H
#define MNIST_DDP_DIST_BACKENDS_GLOO_IMPORT_SLOT_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The slot through which the shared library that `inside` (any address of its code or data) is part
 * of calls the function `name`. NULL if it is no library of this process, or does not import it. */
void **import_slot_find(const void *inside, const char *name);

/* From now on that library calls `function` instead of `name`. It must have been opened with all
 * its functions bound (RTLD_NOW). Other threads may call through the slot meanwhile. STATUS_INVALID
 * if there is no such slot, or if `function` is part of the same library: it would call itself
 * instead of `name`. STATUS_IO if the slot's memory cannot be made writable. */
status import_slot_redirect(const void *inside, const char *name, void *function);

#ifdef __cplusplus
}
#endif
#endif
