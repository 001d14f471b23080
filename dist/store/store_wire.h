/* c10d's wire as bytes: numbers and limits.
 *
 * The wire is little endian. A string (key, value) is its length as u64 and its bytes. A client
 * first sends u8 0 (VALIDATE) and u32 0x3C85F7CE, to which nothing is replied; then one request at
 * a time, which begins with its opcode as u8:
 *
 *    1 SET           key, value                      no reply
 *    2 COMPARE_SET   key, expected, desired          the value that is there now
 *    3 GET           key                             the value
 *    4 ADD           key, i64                        i64: the sum
 *    5 CHECK         u64 n, n keys                   u8: 0 all are there, 1 not all
 *    6 WAIT          u64 n, n keys                   u8 0, once all are there
 *    7 GETNUMKEYS                                    i64
 *    8 DELETE_KEY    key                             i64: 1 deleted, 0 not there
 *    9 APPEND        key, value                      no reply
 *   10 MULTI_GET     u64 n, n keys                   n values
 *   11 MULTI_SET     u64 n, n times key and value    no reply
 *   12 CANCEL_WAIT                                   u8 1
 *   13 PING          u32                             the same u32
 *   14 QUEUE_PUSH    key, value                      no reply
 *   15 QUEUE_POP     key                             i64: values before it; unless 0, the first
 *   16 QUEUE_LEN     key                             i64
 *   17 LIST_KEYS                                     i64 n, n keys
 *   18 BARRIER       key, i64 n                      u8 0, once n have come
 *
 * A GET of a key that is not there waits for it in the server, as MULTI_GET and WAIT do. Counters
 * are kept as decimal text, and so is how many have come to a barrier. To CHECK and WAIT a queue
 * that holds a value is a key. To GETNUMKEYS, LIST_KEYS and DELETE_KEY it is none.
 *
 * Requests of ours, for keys that are apart from torch's (store_session.h). Any other server closes
 * the connection at their first byte:
 *
 *  200 PUT     key, value, i64 revision, i64 ttl_ms, u32 flags    i64: the revision; 0: not set
 *  201 RENEW   key                                                u8: 1 renewed, 0 not there
 *  202 REMOVE  key                                                u8: 1 removed, 0 not there
 *  203 WATCH   prefix, i64 revision, i64 wait_ms    u8 0, u64: the bytes that follow, i64: the
 *                                                   revision now, u64 n, and n times key, value,
 *                                                   i64 created, i64 set; or only u8 2
 *
 * PUT sets the key if `revision` has set it last (0: if it is not there; -1: in any case), under a
 * lease of ttl_ms (0: none). Flag 1: the key goes when the connection that has put or renewed it
 * last closes. WATCH answers once anything under the prefix has changed after `revision` (-1: at
 * once), with all that is there; after wait_ms with 2. CANCEL_WAIT ends it, too.
 */
#ifndef MNIST_DDP_DIST_STORE_STORE_WIRE_H
#define MNIST_DDP_DIST_STORE_STORE_WIRE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum store_opcode {
    STORE_VALIDATE,
    STORE_SET,
    STORE_COMPARE_SET,
    STORE_GET,
    STORE_ADD,
    STORE_CHECK,
    STORE_WAIT,
    STORE_GETNUMKEYS,
    STORE_DELETE_KEY,
    STORE_APPEND,
    STORE_MULTI_GET,
    STORE_MULTI_SET,
    STORE_CANCEL_WAIT,
    STORE_PING,
    STORE_QUEUE_PUSH,
    STORE_QUEUE_POP,
    STORE_QUEUE_LEN,
    STORE_LIST_KEYS,
    STORE_BARRIER,
    STORE_PUT = 200,
    STORE_RENEW,
    STORE_REMOVE,
    STORE_WATCH,
    STORE_OWN_END,
} store_opcode;

#define STORE_MAGIC 0x3C85F7CEu

enum {
    STORE_GREETING_BYTES = 5,
    STORE_KEY_BYTES = 8 << 10,      /* longest key that either side accepts */
    STORE_VALUE_BYTES = 8 << 20,    /* longest value, likewise */
    STORE_REQUEST_KEYS = 128 << 10, /* most keys of one request */
    STORE_REQUEST_BYTES = 64 << 20, /* longest request */
    STORE_WAIT_ENDED = 0,           /* answers to WAIT */
    STORE_WAIT_CANCELED = 1,        /* answers to WAIT and to CANCEL_WAIT */
    STORE_CHECK_READY = 0,          /* answers to CHECK */
    STORE_CHECK_NOT_READY = 1,
    STORE_WATCH_SAME = 2,           /* to WATCH: nothing has changed */
    STORE_GOES_WITH_CONNECTION = 1, /* flag of PUT */
    STORE_TTL_MS = 100,             /* the shortest lease */
    STORE_LIMIT_MS = 24 * 3600000,  /* the longest lease or wait */
};

/* Bytes that somebody else owns. */
typedef struct store_bytes {
    const uint8_t *data;
    size_t size;
} store_bytes;

/* Little endian; the callers have checked that the bytes are there. */
void store_wire_put_u32(uint8_t *out, uint32_t x);
void store_wire_put_u64(uint8_t *out, uint64_t x);
uint32_t store_wire_u32(const uint8_t *data);
uint64_t store_wire_u64(const uint8_t *data);

/* The parts of a whole request, one after the other, from *at on; moves *at. */
uint64_t store_wire_take_u64(const uint8_t *data, size_t *at);
store_bytes store_wire_take_bytes(const uint8_t *data, size_t *at);

#endif
