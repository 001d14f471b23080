#include "dist/store/byte_buffer.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_BYTES = 512, KEEP_BYTES = 1024 };

static size_t room_behind(const byte_buffer *buffer)
{
    return buffer->memory == NULL
               ? 0
               : buffer->capacity - (size_t)(buffer->data - buffer->memory) - buffer->size;
}

status byte_buffer_reserve(byte_buffer *buffer, size_t extra, uint8_t **end)
{
    if (extra > SIZE_MAX / 4 || buffer->size > SIZE_MAX / 4)
        return FAIL(STATUS_NO_MEMORY, "a buffer of %zu and %zu more bytes", buffer->size, extra);
    if (room_behind(buffer) < extra || buffer->memory == NULL) {
        size_t need = buffer->size + extra;
        /* Moving the bytes to the front pays only where that makes much room. */
        if (need > buffer->capacity || buffer->size > buffer->capacity / 2 ||
            buffer->memory == NULL) {
            size_t capacity = need + buffer->size / 2;
            if (capacity < FIRST_BYTES)
                capacity = FIRST_BYTES;
            uint8_t *memory = malloc(capacity);
            if (memory == NULL)
                return FAIL(STATUS_NO_MEMORY, "a buffer of %zu bytes", capacity);
            if (buffer->size > 0)
                memcpy(memory, buffer->data, buffer->size);
            free(buffer->memory);
            buffer->memory = memory;
            buffer->capacity = capacity;
        } else {
            memmove(buffer->memory, buffer->data, buffer->size);
        }
        buffer->data = buffer->memory;
    }
    *end = buffer->data + buffer->size;
    return STATUS_OK;
}

void byte_buffer_extend(byte_buffer *buffer, size_t size_bytes)
{
    ASSERT(size_bytes <= room_behind(buffer));
    buffer->size += size_bytes;
}

status byte_buffer_append(byte_buffer *buffer, const void *data, size_t size_bytes)
{
    if (size_bytes == 0)
        return STATUS_OK;
    uint8_t *end;
    TRY(byte_buffer_reserve(buffer, size_bytes, &end));
    memcpy(end, data, size_bytes);
    byte_buffer_extend(buffer, size_bytes);
    return STATUS_OK;
}

void byte_buffer_consume(byte_buffer *buffer, size_t size_bytes)
{
    ASSERT(size_bytes <= buffer->size);
    if (size_bytes == 0)
        return;
    buffer->data += size_bytes;
    buffer->size -= size_bytes;
    if (buffer->size > 0)
        return;
    if (buffer->capacity > KEEP_BYTES)
        byte_buffer_free(buffer);
    else
        buffer->data = buffer->memory;
}

void byte_buffer_free(byte_buffer *buffer)
{
    free(buffer->memory);
    *buffer = (byte_buffer){0};
}
