#include "dist/store/store_wire.h"

#include <inttypes.h>

void store_wire_put_u32(uint8_t *out, uint32_t x)
{
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(x >> (8 * i));
}

void store_wire_put_u64(uint8_t *out, uint64_t x)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(x >> (8 * i));
}

uint32_t store_wire_u32(const uint8_t *data)
{
    uint32_t x = 0;
    for (int i = 3; i >= 0; i--)
        x = x << 8 | data[i];
    return x;
}

uint64_t store_wire_u64(const uint8_t *data)
{
    return (uint64_t)store_wire_u32(data + 4) << 32 | store_wire_u32(data);
}

/* What follows each opcode: 'k' a key, 'v' a value, '4' and '8' a number of so many bytes. 'n' is a
 * count: all that follows it comes that many times. NULL: no such request. */
static const char *const FIELDS[STORE_OPCODES] = {
    [STORE_SET] = "kv",       [STORE_COMPARE_SET] = "kvv", [STORE_GET] = "k",
    [STORE_ADD] = "k8",       [STORE_CHECK] = "nk",        [STORE_WAIT] = "nk",
    [STORE_GETNUMKEYS] = "",  [STORE_DELETE_KEY] = "k",    [STORE_APPEND] = "kv",
    [STORE_MULTI_GET] = "nk", [STORE_MULTI_SET] = "nkv",   [STORE_CANCEL_WAIT] = "",
    [STORE_PING] = "4",       [STORE_QUEUE_PUSH] = "kv",   [STORE_QUEUE_POP] = "k",
    [STORE_QUEUE_LEN] = "k",  [STORE_LIST_KEYS] = "",      [STORE_BARRIER] = "k8",
};

static const char *const OWN_FIELDS[STORE_OWN_END - STORE_PUT] = {"kv884", "k", "k", "k88"};

static const char *fields_of(uint8_t opcode)
{
    if (opcode >= STORE_PUT && opcode < STORE_OWN_END)
        return OWN_FIELDS[opcode - STORE_PUT];
    return opcode < STORE_OPCODES ? FIELDS[opcode] : NULL;
}

bool store_wire_knows(uint8_t opcode)
{
    return fields_of(opcode) != NULL;
}

/* Sets *length to the bytes of the field at scan->at. PARTIAL if its own length is not there yet.
 */
static store_scan_result field_length(const store_scan *scan, const uint8_t *data, size_t size,
                                      size_t *length)
{
    char field = scan->fields[0];
    *length = field == '4' ? 4 : 8;
    if (size - scan->at < *length)
        return STORE_SCAN_PARTIAL;
    if (field == '4' || field == '8')
        return STORE_SCAN_WHOLE;
    uint64_t promised = store_wire_u64(data + scan->at);
    uint64_t limit = field == 'k'   ? STORE_KEY_BYTES
                     : field == 'v' ? STORE_VALUE_BYTES
                                    : STORE_REQUEST_KEYS;
    if (promised > limit) {
        (void)FAIL(STATUS_PEER, "a %s of %" PRIu64 ", at most %" PRIu64 " are allowed",
                   field == 'n' ? "number of keys" : "length in bytes", promised, limit);
        return STORE_SCAN_BAD;
    }
    if (field != 'n')
        *length += (size_t)promised;
    return size - scan->at < *length ? STORE_SCAN_PARTIAL : STORE_SCAN_WHOLE;
}

store_scan_result store_wire_scan(store_scan *scan, const uint8_t *data, size_t size)
{
    if (size == 0)
        return STORE_SCAN_PARTIAL;
    const char *all = fields_of(data[0]);
    if (all == NULL) {
        (void)FAIL(STATUS_PEER, "no request has number %d", data[0]);
        return STORE_SCAN_BAD;
    }
    if (scan->fields == NULL)
        *scan = (store_scan){.fields = all, .at = 1};
    while (scan->fields[0] != '\0') {
        size_t length;
        store_scan_result result = field_length(scan, data, size, &length);
        if (result == STORE_SCAN_BAD)
            return result;
        if (scan->at + length > STORE_REQUEST_BYTES) {
            (void)FAIL(STATUS_PEER, "a request of more than %d bytes", STORE_REQUEST_BYTES);
            return STORE_SCAN_BAD;
        }
        if (result == STORE_SCAN_PARTIAL)
            return result;
        if (scan->fields[0] == 'n') {
            scan->repeats = store_wire_u64(data + scan->at);
            if (scan->repeats == 0)
                scan->fields = "";
            else
                scan->fields++;
        } else {
            scan->fields++;
            if (scan->fields[0] == '\0' && scan->repeats > 1) {
                scan->repeats--;
                scan->fields = all + 1;
            }
        }
        scan->at += length;
    }
    return STORE_SCAN_WHOLE;
}

uint64_t store_wire_take_u64(const uint8_t *data, size_t *at)
{
    uint64_t x = store_wire_u64(data + *at);
    *at += 8;
    return x;
}

store_bytes store_wire_take_bytes(const uint8_t *data, size_t *at)
{
    size_t size = (size_t)store_wire_take_u64(data, at);
    store_bytes bytes = {.data = data + *at, .size = size};
    *at += size;
    return bytes;
}
