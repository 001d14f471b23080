/* Who failed first, for all ranks of a group and for its launcher.
 *
 * A rank that fails takes others with it: whoever waits for it fails and goes, and so the next. The
 * first finding is therefore kept in one record that all ranks share, and everybody names the rank
 * that it names. The record lies in the store; or, if ranks share memory, in a word of that, which
 * also outlives the store.
 *
 * A rank that is through with a collective may go while others still take in what it has sent. It
 * says how far it has come, and its going counts only if it has not come as far as it is needed.
 * One that was killed says nothing.
 */
#ifndef MNIST_DDP_DIST_FIRST_CAUSE_H
#define MNIST_DDP_DIST_FIRST_CAUSE_H

#include "dist/health/peers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a rank's failure tells about the first cause; the most tells the highest. */
typedef enum cause_weight {
    CAUSE_LOST,   /* another rank went away: STATUS_PEER */
    CAUSE_WAITED, /* another rank did not come in time: STATUS_TIMEOUT */
    CAUSE_OWN,    /* it failed by itself, or was killed */
} cause_weight;

cause_weight first_cause_weigh(status st);

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

/* The store may be gone from now on: it is not asked any more. From any thread. */
void first_cause_leave_store(first_cause *c);

/* STATUS_PEER: "rank 2 (pid 71) is gone". Whoever notices a death soon ends too, and so the others
 * find several dead: named is the first that any rank has seen, `dead` being this rank's. */
status first_cause_death(first_cause *c, int dead);

/* A library blames a peer, and its words are this thread's message. Puts in front whose process has
 * ended, if one has or does within 100 ms; false: none. */
bool first_cause_blame(first_cause *c);

/* STATUS_PEER: "rank 2 (pid 71) has closed its process group"; p NULL: without the process. */
status first_cause_closed(const peers *p, int rank);

/* How a rank closes its group. */
typedef struct departure {
    uint64_t number; /* collectives that it has done, sends and receives aside */
    status why;      /* STATUS_OK: in peace */
    char words[512];
} departure;

/* This rank closes its group. Shared memory holds only that, and whom it had lost. */
void first_cause_depart(first_cause *c, const departure *how);

/* With shared memory: whether a rank has closed its group or seen another one die; and then that
 * failure, STATUS_PEER with both. */
bool first_cause_is_known(const first_cause *c);
status first_cause_known(const first_cause *c);

/* This rank gives up on that one, which does not come: told with this rank's departure. */
void first_cause_give_up_on(first_cause *c, int rank);

/* What follows asks the store, and takes as long as that does. */

/* What this rank waits for. */
typedef struct awaited {
    int only;         /* the one peer that it needs; -1: all */
    uint64_t number;  /* of the collective */
    int64_t since_ns; /* when it began, or when the one before had ended */
} awaited;

/* Notes who has ended by now, in a few microseconds. One thread's alone, as is the next. */
void first_cause_look(first_cause *c, int64_t now_ns);

/* STATUS_OK, or the failure of a rank that is needed and gone for a little while: STATUS_PEER, or
 * what it says itself why it left. Asks the store only if somebody is gone, or if the collective
 * has taken a second, and then every second. */
status first_cause_check(first_cause *c, const awaited *what, int64_t now_ns);

/* This rank has waited in collective `number` for half the timeout. */
void first_cause_tell_waiting(const first_cause *c, uint64_t number);

/* Who is late in it: ": rank 2 (pid 71) is stopped", ": rank 2 has not come, nor rank 3", or "" if
 * nobody is found. Processes of this host are looked at first: the store may be one that has
 * stopped. */
void first_cause_name_late(const first_cause *c, uint64_t number, char *out, size_t size_bytes);

#ifdef __cplusplus
}
#endif
#endif
