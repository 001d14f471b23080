/* Who failed first, for all ranks of a group and for its launcher.
 *
 * A rank that fails takes others with it: whoever waits for it fails and ends, and so on. So the
 * first failure that any rank sees is kept in one record that all ranks share, and all name the
 * rank that it names. The record lies in the store; or, if ranks share memory, in a word of that,
 * which also outlives the store.
 *
 * A rank that has done a collective may leave while others still receive what it has sent. So it
 * says how many collectives it has done, and its leaving is a failure only for those that need it
 * in a later one. A rank that was killed says nothing.
 */
#ifndef MNIST_DDP_DIST_HEALTH_FIRST_CAUSE_H
#define MNIST_DDP_DIST_HEALTH_FIRST_CAUSE_H

#include "dist/health/peers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How much a rank's failure tells about the first cause; the highest tells most. */
typedef enum cause_priority {
    CAUSE_LOST,   /* another rank went away: STATUS_PEER */
    CAUSE_WAITED, /* another rank did not come in time: STATUS_TIMEOUT */
    CAUSE_OWN,    /* it failed by itself, or was killed */
} cause_priority;

cause_priority first_cause_priority(status st);

typedef struct first_cause first_cause;

/* The record, if ranks share memory; 0: nothing is known. */
typedef uint32_t first_cause_word;

/* Meets all ranks (peers_create, with its failures). `shared`: the same word for all ranks, written
 * atomically, borrowed until destroy; NULL: the record is in the store. Borrows the store. */
status first_cause_create(const group_setup *setup, first_cause_word *shared, int64_t deadline_ns,
                          first_cause **out);
void first_cause_destroy(first_cause *c); /* accepts NULL */

/* The processes of all ranks; lives as long as c. */
const peers *first_cause_peers(const first_cause *c);

/* The store may be gone from now on, and is not asked any more. From any thread. */
void first_cause_leave_store(first_cause *c);

/* STATUS_PEER: "rank 2 (pid 71) is gone". Whoever notices a death soon ends too, so the others find
 * several dead. Named is the first that any rank has seen; `dead` is the one that this rank has
 * seen. */
status first_cause_death(first_cause *c, int dead);

/* A library blames a peer, and its words are this thread's message. Puts before it whose process
 * has ended, if one has or does within 100 ms; false: none. */
bool first_cause_blame(first_cause *c);

/* STATUS_PEER: "rank 2 (pid 71) has closed its process group"; p NULL: without the process. */
status first_cause_closed(const peers *p, int rank);

/* In this thread's message "rank 1 (pid 71)" becomes "rank 5 (pid 71)" if `ranks` has a 5 at 1: the
 * numbers of the larger group that a group's ranks are from. */
void first_cause_rename(const int *ranks, int n);

/* How a rank closes its group. */
typedef struct departure {
    uint64_t number; /* collectives that it has done, sends and receives aside */
    status why;      /* STATUS_OK: without a failure */
    char words[512];
} departure;

/* This rank closes its group. Shared memory keeps only that, and whom it had lost. */
void first_cause_depart(first_cause *c, const departure *how);

/* With shared memory: has a rank closed its group, or seen another one die? Then that failure, with
 * both: STATUS_PEER; STATUS_TIMEOUT if it has given up on the other, also before this rank's own
 * deadline. */
bool first_cause_is_known(const first_cause *c);
status first_cause_known(const first_cause *c);

/* With shared memory: is it known that a rank was lost, or given up on? Not, if all that is known
 * is a rank that has closed its group: it may have done all that it had to. */
bool first_cause_is_loss(const first_cause *c);

/* This rank no longer waits for that one: told with this rank's departure. */
void first_cause_give_up_on(first_cause *c, int rank);

/* What follows asks the store, and takes as long as that does. */

/* A rank's bit among the peers that are needed. Ranks from 63 on share the last one. */
static inline uint64_t first_cause_bit(int rank)
{
    return UINT64_C(1) << (rank < 63 ? rank : 63);
}

/* What this rank waits for. */
typedef struct awaited {
    uint64_t only;    /* bits of the peers that it needs; 0: all */
    uint64_t number;  /* the collective's */
    int64_t since_ns; /* when it began, or when the one before had ended */
} awaited;

/* Notes who has ended by now, in a few microseconds. Only one thread may call it and the next. */
void first_cause_look(first_cause *c, int64_t now_ns);

/* STATUS_OK, or the failure of a rank that is needed and has been gone for a little while:
 * STATUS_PEER, or its own reason. Asks the store only if a rank is gone; after the collective has
 * taken a second, also once a second. */
status first_cause_check(first_cause *c, const awaited *what, int64_t now_ns);

/* This rank has waited in collective `number` for half the timeout. */
void first_cause_tell_waiting(const first_cause *c, uint64_t number);

/* Which rank is late in it: ": rank 2 (pid 71) is stopped", ": rank 2 has not come, nor rank 3", or
 * "" if nobody is found. Processes of this host are looked at first: the store may be one that has
 * stopped. */
void first_cause_name_late(const first_cause *c, uint64_t number, char *out, size_t size_bytes);

#ifdef __cplusplus
}
#endif
#endif
