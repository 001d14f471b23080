#include "tests/app/support/event_records.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

uint32_t event_records_crc(const uint8_t *data, size_t size_bytes)
{
    uint32_t table[256], crc = UINT32_MAX;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int k = 0; k < 8; k++)
            table[i] = (table[i] & 1) != 0 ? table[i] >> 1 ^ 0x82f63b78u : table[i] >> 1;
    }
    for (size_t i = 0; i < size_bytes; i++)
        crc = table[(crc ^ data[i]) & 0xff] ^ crc >> 8;
    return crc ^ UINT32_MAX;
}

static uint64_t take_number(event_reader *in, size_t size_bytes)
{
    uint64_t value = 0;
    ck_assert_uint_ge((size_t)(in->end - in->at), size_bytes);
    memcpy(&value, in->at, size_bytes); /* of a little-endian machine, as all that it runs on */
    in->at += size_bytes;
    return value;
}

static uint64_t take_varint(event_reader *in)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        uint64_t byte = take_number(in, 1);
        value |= (byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
}

static event_reader take_bytes(event_reader *in)
{
    size_t size_bytes = take_varint(in);
    ck_assert_uint_ge((size_t)(in->end - in->at), size_bytes);
    event_reader part = {in->at, in->at + size_bytes};
    in->at = part.end;
    return part;
}

static void check_crc(event_reader *in, const uint8_t *data, size_t size_bytes)
{
    uint32_t rotated = (uint32_t)take_number(in, 4) - 0xa282ead8u;
    ck_assert_uint_eq(rotated >> 17 | rotated << 15, event_records_crc(data, size_bytes));
}

/* The data of the next record. */
static event_reader take_record(event_reader *in)
{
    const uint8_t *header = in->at;
    uint64_t size_bytes = take_number(in, 8);
    check_crc(in, header, 8);
    ck_assert_uint_ge((size_t)(in->end - in->at), size_bytes);
    event_reader data = {in->at, in->at + size_bytes};
    in->at = data.end;
    check_crc(in, data.at, size_bytes);
    return data;
}

static void read_value(event_reader value, event_record *out)
{
    event_reader tag = {0};
    uint32_t bits = 0;
    ck_assert_uint_eq(take_varint(&value), 1 << 3 | 2);
    tag = take_bytes(&value);
    ck_assert_uint_eq(take_varint(&value), 2 << 3 | 5);
    bits = (uint32_t)take_number(&value, 4);
    ck_assert_ptr_eq(value.at, value.end);
    ck_assert_int_lt(out->n, EVENT_FILE_MAX_SCALARS);
    snprintf(out->tags[out->n], EVENT_FILE_TAG_BYTES, "%.*s", (int)(tag.end - tag.at),
             (const char *)tag.at);
    memcpy(&out->values[out->n++], &bits, sizeof bits);
}

static event_record read_event(event_reader data)
{
    event_record e = {0};
    while (data.at < data.end) {
        uint64_t key = take_varint(&data), bits;
        event_reader part;
        switch (key) {
        case 1 << 3 | 1:
            bits = take_number(&data, 8);
            memcpy(&e.wall_time, &bits, sizeof bits);
            break;
        case 2 << 3 | 0:
            e.step = (int64_t)take_varint(&data);
            break;
        case 3 << 3 | 2:
            part = take_bytes(&data);
            e.is_version = part.end - part.at == 13 && memcmp(part.at, "brain.Event:2", 13) == 0;
            break;
        case 5 << 3 | 2:
            part = take_bytes(&data);
            while (part.at < part.end) {
                ck_assert_uint_eq(take_varint(&part), 1 << 3 | 2);
                read_value(take_bytes(&part), &e);
            }
            break;
        case 7 << 3 | 2:
            part = take_bytes(&data);
            e.is_start = part.end - part.at == 2 && part.at[0] == (1 << 3) && part.at[1] == 1;
            break;
        default:
            ck_abort_msg("field %d of an event", (int)key);
        }
    }
    return e;
}

event_record event_records_take(event_reader *in)
{
    return read_event(take_record(in));
}
