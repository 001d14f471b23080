/* A cure for the stall of gloo's rings on the loopback interface.
 *
 * Loopback's segments are 64 KiB. A ring sends messages that are not multiples of that, the last,
 * short segment waits in the sender for an acknowledgement, and the receiver delays it by 40 ms:
 * 44 ms for an all_reduce of 80 KB that else takes 0.3 ms. With segments of Ethernet's size the
 * receiver acknowledges at once; where it never delays, small segments cost a quarter of the speed,
 * so they are for stalls that were seen. The size can only be set on the listening socket, before
 * listen(), and that call is inside libgloo: so this file defines a listen() that comes before
 * libc's, in the executable, where a module's libraries look first.
 */
#ifndef MNIST_DDP_DIST_GLOO_LOOPBACK_MSS_H
#define MNIST_DDP_DIST_GLOO_LOOPBACK_MSS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum loopback_mss { LOOPBACK_MSS_LEAVE, LOOPBACK_MSS_CLAMP } loopback_mss;

/* While set to CLAMP, sockets bound to a loopback address on which this thread calls listen() get
 * segments of 1448 bytes; all other sockets and threads see plain listen(). */
void loopback_mss_set(loopback_mss mode);

#ifdef __cplusplus
}
#endif
#endif
