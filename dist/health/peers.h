/* Processes of this host: which one a number means, and whether those of a group live. */
#ifndef MNIST_DDP_DIST_HEALTH_PEERS_H
#define MNIST_DDP_DIST_HEALTH_PEERS_H

#include "dist/collective/process_group_ops.h"

#include <stdint.h>

/* The processes of a group's ranks, and which of them live: watched through pidfds and /proc if all
 * ranks are on this host, else not at all.
 *
 * The ranks meet (membership.h): each says who it is, or why it goes no further, and all get the
 * same list.
 */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct peers peers;

/* Returns once every rank has come. STATUS_TIMEOUT at the deadline, with a rank that
 * has not come; STATUS_PEER with one that has declined or, on one host, has ended since; STATUS_IO
 * if the kernel has no pidfds (Linux before 5.3). */
status peers_create(const group_setup *setup, int64_t deadline_ns, peers **out);
void peers_destroy(peers *p); /* accepts NULL */

/* Instead of peers_create, after a failure of this thread's: the other ranks, which wait for this
 * one or will, fail with STATUS_PEER and its message. Keeps the message. */
void peers_decline(const group_setup *setup);

/* "rank 2 (pid 71)", or "rank 2" if its process is not known, as on another host. */
enum { PEERS_NAME_BYTES = 48 };
void peers_name(const peers *p, int rank, char out[PEERS_NAME_BYTES]);

/* The lowest rank >= from, other than ranks of this process, that has ended, or is stopped; -1:
 * none. The first waits up to timeout_ms for an end. From any thread. */
int peers_find_ended(const peers *p, int from, int timeout_ms);
int peers_find_stopped(const peers *p, int from);

#ifdef __cplusplus
}
#endif

/* One process of this host, and whether it lives. */

#ifdef __cplusplus
extern "C" {
#endif

/* A pid may be given to another process later; a pid with its start never is. */
typedef struct process_id {
    int32_t pid;    /* as this process's namespace numbers it */
    uint64_t start; /* in clock ticks since the machine started; 0: not known */
} process_id;

typedef enum process_state {
    PROCESS_ENDED,
    PROCESS_RUNS,
    PROCESS_STOPPED, /* by a signal (SIGSTOP) or a debugger */
} process_state;

process_id process_self(void);

/* Reads /proc/<pid>/stat. A process that has ended and was not waited for yet has ended. */
process_state process_look(process_id id);

#ifdef __cplusplus
}
#endif

#endif
