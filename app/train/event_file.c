#include "app/train/event_file.h"

#include "base/status.h"

#include <string.h>

/* Fields of the messages, and how a field is encoded. */
enum { WALL_TIME = 1, STEP = 2, FILE_VERSION = 3, SUMMARY = 5, SESSION_LOG = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, LOG_STATUS = 1, STATUS_START = 1 };
enum { VARINT = 0, FIXED_64 = 1, BYTES = 2, FIXED_32 = 5 };

enum { LENGTH_BYTES = 8, CRC_BYTES = 4, HEADER_BYTES = LENGTH_BYTES + CRC_BYTES };

/* A message that grows. */
typedef struct message {
    uint8_t *at; /* its end */
} message;

static uint32_t masked_crc(const uint8_t *data, size_t size_bytes)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < size_bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
    }
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static uint8_t *put_little_endian(uint8_t *at, uint64_t value, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        *at++ = (uint8_t)(value >> (8 * i));
    return at;
}

/* Seven bits a byte, the lowest first; the top bit says that more follow. */
static void add_varint(message *m, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *m->at++ = (uint8_t)(value | 0x80);
    *m->at++ = (uint8_t)value;
}

static void add_key(message *m, int field, int encoding)
{
    add_varint(m, (uint64_t)(field << 3 | encoding));
}

static void add_integer(message *m, int field, int64_t value)
{
    add_key(m, field, VARINT);
    add_varint(m, (uint64_t)value);
}

static void add_double(message *m, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_key(m, field, FIXED_64);
    m->at = put_little_endian(m->at, bits, 8);
}

static void add_float(message *m, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_key(m, field, FIXED_32);
    m->at = put_little_endian(m->at, bits, 4);
}

static void add_bytes(message *m, int field, const void *data, size_t size_bytes)
{
    add_key(m, field, BYTES);
    add_varint(m, size_bytes);
    memcpy(m->at, data, size_bytes);
    m->at += size_bytes;
}

/* The event of a record, after the room for the record's header. */
static message begin_event(uint8_t *record, double wall_time)
{
    message event = {record + HEADER_BYTES};
    add_double(&event, WALL_TIME, wall_time);
    return event;
}

/* Puts the record's length and CRCs around the event. Returns the record's size. */
static size_t end_event(uint8_t *record, const message *event)
{
    const uint8_t *data = record + HEADER_BYTES;
    size_t size_bytes = (size_t)(event->at - data);
    put_little_endian(record, size_bytes, LENGTH_BYTES);
    put_little_endian(record + LENGTH_BYTES, masked_crc(record, LENGTH_BYTES), CRC_BYTES);
    put_little_endian(event->at, masked_crc(data, size_bytes), CRC_BYTES);
    return HEADER_BYTES + size_bytes + CRC_BYTES;
}

size_t event_file_version(double wall_time, uint8_t *out)
{
    static const char version[] = "brain.Event:2";
    message event = begin_event(out, wall_time);
    add_bytes(&event, FILE_VERSION, version, strlen(version));
    return end_event(out, &event);
}

size_t event_file_start(double wall_time, int64_t step, uint8_t *out)
{
    uint8_t bytes[8];
    message session = {bytes};
    add_integer(&session, LOG_STATUS, STATUS_START);
    message event = begin_event(out, wall_time);
    add_integer(&event, STEP, step);
    add_bytes(&event, SESSION_LOG, bytes, (size_t)(session.at - bytes));
    return end_event(out, &event);
}

/* One value of a summary. */
static void add_scalar(message *summary, const event_scalar *scalar)
{
    uint8_t bytes[EVENT_FILE_TAG_BYTES + 8];
    message value = {bytes};
    size_t length = strlen(scalar->tag);
    ASSERT(length < EVENT_FILE_TAG_BYTES);
    add_bytes(&value, VALUE_TAG, scalar->tag, length);
    add_float(&value, VALUE_SIMPLE, (float)scalar->value);
    add_bytes(summary, SUMMARY_VALUE, bytes, (size_t)(value.at - bytes));
}

size_t event_file_scalars(double wall_time, int64_t step, const event_scalar *scalars, int n,
                          uint8_t *out)
{
    uint8_t bytes[EVENT_FILE_MAX_SCALARS * (EVENT_FILE_TAG_BYTES + 12)];
    message summary = {bytes};
    ASSERT(n >= 1 && n <= EVENT_FILE_MAX_SCALARS);
    for (int i = 0; i < n; i++)
        add_scalar(&summary, &scalars[i]);
    message event = begin_event(out, wall_time);
    add_integer(&event, STEP, step);
    add_bytes(&event, SUMMARY, bytes, (size_t)(summary.at - bytes));
    return end_event(out, &event);
}
