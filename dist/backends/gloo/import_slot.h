/* One shared library's own entry for a function that it imports.
 *
 * A library calls functions of others through a table of pointers (its global offset table), which
 * the dynamic linker fills in, one slot for each function. Another pointer in one slot changes what
 * this library calls, and nothing for anybody else in the process.
 */
#ifndef MNIST_DDP_DIST_GLOO_IMPORT_SLOT_H
#define MNIST_DDP_DIST_GLOO_IMPORT_SLOT_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The slot through which the shared library that `inside` (any address of its code or data) is part
 * of calls the function `name`. NULL if it is no library of this process, or does not import it. */
void **import_slot_find(const void *inside, const char *name);

/* Puts `function` there, in memory that the dynamic linker has made read-only as well. The library
 * must have been opened with all its functions bound (RTLD_NOW). Other threads may call through the
 * slot meanwhile. false with errno if the memory cannot be made writable. */
bool import_slot_set(void **slot, void *function);

#ifdef __cplusplus
}
#endif
#endif
