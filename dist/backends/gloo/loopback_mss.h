/* A remedy for gloo's rings that stall on the loopback interface.
 *
 * Loopback's segments are 64 KiB. A ring's messages are not multiples of that. The last, short
 * segment waits in the sender for an acknowledgement, which the receiver delays by 40 ms: an
 * all_reduce of 80 KB takes 44 ms instead of 0.3 ms. With segments of Ethernet's size the receiver
 * acknowledges at once. Small segments cost a quarter of the speed if nothing stalls, so they are
 * only used after a stall was seen. The size can only be set on the listening socket, before
 * listen(), and libgloo makes that call: so libgloo gets this listen().
 */
#ifndef MNIST_DDP_DIST_BACKENDS_GLOO_LOOPBACK_MSS_H
#define MNIST_DDP_DIST_BACKENDS_GLOO_LOOPBACK_MSS_H

#ifdef __cplusplus
extern "C" {
#endif

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
