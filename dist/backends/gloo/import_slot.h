/* What libgloo calls instead of listen(), and how that gets into its own table of functions. */
#ifndef MNIST_DDP_DIST_BACKENDS_GLOO_IMPORT_SLOT_H
#define MNIST_DDP_DIST_BACKENDS_GLOO_IMPORT_SLOT_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One shared library's own entry for a function that it imports.
 *
 * A library calls functions of others through a table of pointers (its global offset table), which
 * the dynamic linker fills in, one slot for each function. Another pointer in one slot changes what
 * this library calls, and nothing else in the process.
 */

/* The slot through which the shared library that `inside` (any address of its code or data) is part
 * of calls the function `name`. NULL if it is no library of this process, or does not import it. */
void **import_slot_find(const void *inside, const char *name);

/* From now on that library calls `function` instead of `name`. It must have been opened with all
 * its functions bound (RTLD_NOW). Other threads may call through the slot meanwhile. STATUS_INVALID
 * if there is no such slot, or if `function` is part of the same library: it would call itself
 * instead of `name`. STATUS_IO if the slot's memory cannot be made writable. */
status import_slot_redirect(const void *inside, const char *name, void *function);

/* A remedy for gloo's rings that stall on the loopback interface.
 *
 * Loopback's segments are 64 KiB. A ring's messages are not multiples of that. The last, short
 * segment waits in the sender for an acknowledgement, which the receiver delays by 40 ms: an
 * all_reduce of 80 KB takes 44 ms instead of 0.3 ms. With segments of Ethernet's size the receiver
 * acknowledges at once. Small segments cost a quarter of the speed if nothing stalls, so they are
 * only used after a stall was seen. The size can only be set on the listening socket, before
 * listen(), and libgloo makes that call: so libgloo gets this listen().
 */

typedef enum loopback_mss { LOOPBACK_MSS_LEAVE, LOOPBACK_MSS_CLAMP } loopback_mss;

/* How loopback_mss_listen() works on this thread from now on. */
void loopback_mss_set(loopback_mss mode);

/* As listen(). While this thread is set to CLAMP, a socket bound to a loopback address gets
 * segments of 1448 bytes. */
int loopback_mss_listen(int fd, int backlog);

#ifdef __cplusplus
}
#endif
#endif
