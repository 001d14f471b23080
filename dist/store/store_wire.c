#include "dist/store/store_wire.h"

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
