/* The store's wire as bytes: numbers, limits, and finding the end of a request. See
 * dist/store/store.h.
 */
#ifndef MNIST_DDP_DIST_STORE_WIRE_H
#define MNIST_DDP_DIST_STORE_WIRE_H

#include "dist/store/store.h"

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
    STORE_OPCODES,
} store_opcode;

#define STORE_MAGIC 0x3C85F7CEu

enum {
    STORE_GREETING_BYTES = 5,
    STORE_REQUEST_KEYS = 128 << 10, /* most keys of one request */
    STORE_REQUEST_BYTES = 64 << 20, /* longest request */
    STORE_WAIT_ENDED = 0,           /* answers to WAIT */
    STORE_WAIT_CANCELED = 1,        /* and to CANCEL_WAIT */
    STORE_CHECK_READY = 0,          /* answers to CHECK */
    STORE_CHECK_NOT_READY = 1,
};

/* A stretch of somebody else's bytes. */
typedef struct store_bytes {
    const uint8_t *data;
    size_t size;
} store_bytes;

/* Little endian; the callers have checked that the bytes are there. */
void store_wire_put_u32(uint8_t *out, uint32_t x);
void store_wire_put_u64(uint8_t *out, uint64_t x);
uint32_t store_wire_u32(const uint8_t *data);
uint64_t store_wire_u64(const uint8_t *data);

/* Where a search for the end of a request stands; all zero at its start. */
typedef struct store_scan {
    const char *fields; /* still to come, NULL before the opcode is known */
    size_t at;          /* bytes of the request passed so far */
    uint64_t repeats;   /* of the repeated fields, still to come */
} store_scan;

typedef enum store_scan_result {
    STORE_SCAN_PARTIAL, /* more bytes are needed */
    STORE_SCAN_WHOLE,   /* the request is data[0 .. scan->at) */
    STORE_SCAN_BAD,     /* no request begins like this; the message says why */
} store_scan_result;

/* Goes on from where the scan stands; data[0 .. size) is the request from its opcode on, grown
 * since the last call. All lengths and counts of a whole request are within the limits. Reads every
 * byte of the framing once, however the bytes come in. */
store_scan_result store_wire_scan(store_scan *scan, const uint8_t *data, size_t size);

/* The parts of a whole request, one after the other, from *at on; moves *at. */
uint64_t store_wire_take_u64(const uint8_t *data, size_t *at);
store_bytes store_wire_take_bytes(const uint8_t *data, size_t *at);

#endif
