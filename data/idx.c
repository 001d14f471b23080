#include "data/idx.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

enum { TYPE_UNSIGNED_BYTE = 0x08 };

static uint32_t big_endian_32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void put_big_endian_32(uint32_t value, uint8_t *p)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(value >> (24 - 8 * i));
}

static const char *kind_name(idx_kind kind)
{
    return kind == IDX_IMAGES ? "images" : "labels";
}

static int kind_dimensions(idx_kind kind)
{
    return kind == IDX_IMAGES ? 3 : 1;
}

size_t idx_header_bytes(idx_kind kind)
{
    return 4 + 4 * (size_t)kind_dimensions(kind);
}

/* A server without the file often answers with a web page. */
static bool looks_like_web_page(const uint8_t *bytes, size_t size)
{
    size_t at = size >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    while (at < size && isspace(bytes[at]))
        at++;
    if (at + 1 >= size || bytes[at] != '<')
        return false;
    return bytes[at + 1] == '!' || bytes[at + 1] == '?' || isalpha(bytes[at + 1]);
}

static const char *type_name(uint8_t type)
{
    switch (type) {
    case 0x09:
        return "signed byte";
    case 0x0B:
        return "int16";
    case 0x0C:
        return "int32";
    case 0x0D:
        return "float32";
    case 0x0E:
        return "float64";
    default:
        return "unknown";
    }
}

static status magic_check(const char *name, idx_kind kind, const uint8_t *b)
{
    int dimensions = kind_dimensions(kind);
    if (b[0] != 0 || b[1] != 0)
        return FAIL(STATUS_INVALID,
                    "%s: byte 0: %02x %02x %02x %02x is not IDX: expected 00 00 08 %02x, or gzip's "
                    "1f 8b",
                    name, b[0], b[1], b[2], b[3], (unsigned)dimensions);
    if (b[2] != TYPE_UNSIGNED_BYTE)
        return FAIL(STATUS_INVALID,
                    "%s: byte 2: element type 0x%02x (%s), expected 0x08 (unsigned byte)", name,
                    b[2], type_name(b[2]));
    if (b[3] != dimensions)
        return FAIL(STATUS_INVALID, "%s: byte 3: %d dimension(s), expected %d, as %s have%s", name,
                    b[3], dimensions, kind_name(kind),
                    b[3] == 1 || b[3] == 3 ? " (is this the other kind of file?)" : "");
    return STATUS_OK;
}

status idx_header_read(const char *name, idx_kind kind, const uint8_t *bytes,
                       size_t available_bytes, idx_shape *out)
{
    size_t header_bytes = idx_header_bytes(kind);
    if (available_bytes == 0)
        return FAIL(STATUS_INVALID, "%s: byte 0: empty, expected an IDX file of %s", name,
                    kind_name(kind));
    if (looks_like_web_page(bytes, available_bytes))
        return FAIL(STATUS_INVALID,
                    "%s: byte 0: looks like a web page, expected an IDX file of %s: a failed "
                    "download? Fetch it again",
                    name, kind_name(kind));
    if (available_bytes >= 4)
        TRY(magic_check(name, kind, bytes));
    if (available_bytes < header_bytes)
        return FAIL(STATUS_INVALID,
                    "%s: byte %zu: truncated within the header, expected %zu bytes of it", name,
                    available_bytes, header_bytes);
    uint32_t count = big_endian_32(bytes + 4);
    if (count == 0)
        return FAIL(STATUS_INVALID, "%s: byte 4: zero %s, expected at least one", name,
                    kind_name(kind));
    uint64_t element_bytes = 1;
    if (kind == IDX_IMAGES) {
        uint32_t rows = big_endian_32(bytes + 8), columns = big_endian_32(bytes + 12);
        if (rows != IDX_SIDE || columns != IDX_SIDE)
            return FAIL(STATUS_INVALID, "%s: byte 8: images of %ux%u, expected %dx%d", name, rows,
                        columns, IDX_SIDE, IDX_SIDE);
        element_bytes = IDX_PIXELS;
    }
    uint64_t total_bytes = header_bytes + count * element_bytes; /* < 2^32 * 785: no overflow */
    if (total_bytes > IDX_MAX_BYTES)
        return FAIL(STATUS_INVALID,
                    "%s: byte 4: %u %s are too many: %llu bytes, expected at most %d", name, count,
                    kind_name(kind), (unsigned long long)total_bytes, IDX_MAX_BYTES);
    *out = (idx_shape){count, header_bytes, (size_t)total_bytes};
    return STATUS_OK;
}

status idx_size_check(const char *name, const idx_shape *shape, uint64_t actual_bytes)
{
    if (actual_bytes < shape->total_bytes)
        return FAIL(STATUS_INVALID,
                    "%s: byte %llu: truncated, the header's count of %u is expected to end at %zu",
                    name, (unsigned long long)actual_bytes, shape->count, shape->total_bytes);
    if (actual_bytes > shape->total_bytes)
        return FAIL(STATUS_INVALID,
                    "%s: byte %zu: trailing bytes, the header's count of %u is expected to end "
                    "here",
                    name, shape->total_bytes, shape->count);
    return STATUS_OK;
}

status idx_labels_check(const char *name, const uint8_t *labels, size_t count, size_t offset)
{
    unsigned largest = 0; /* a plain maximum is vectorised; the position is found on error */
    for (size_t i = 0; i < count; i++)
        largest = labels[i] > largest ? labels[i] : largest;
    if (largest < IDX_CLASSES)
        return STATUS_OK;
    size_t at = 0;
    while (at + 1 < count && labels[at] < IDX_CLASSES)
        at++;
    return FAIL(STATUS_INVALID, "%s: byte %zu: label %u, expected 0 to %d", name, offset + at,
                labels[at], IDX_CLASSES - 1);
}

void idx_header_write(idx_kind kind, uint32_t count, uint8_t *out)
{
    put_big_endian_32((uint32_t)TYPE_UNSIGNED_BYTE << 8 | (uint32_t)kind_dimensions(kind), out);
    put_big_endian_32(count, out + 4);
    for (size_t at = 8; at < idx_header_bytes(kind); at += 4)
        put_big_endian_32(IDX_SIDE, out + at);
}
