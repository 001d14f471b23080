#include "base/byte_buffer.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_BYTES = 512, KEEP_BYTES = 1024 };

static size_t room_after_end(const byte_buffer *buffer)
{
    return buffer->memory == NULL
               ? 0
               : buffer->capacity - (size_t)(buffer->data - buffer->memory) - buffer->size;
}

static status move_to_new_memory(byte_buffer *buffer, size_t capacity)
{
    uint8_t *memory = malloc(capacity);
    if (memory == NULL)
        return FAIL(STATUS_NO_MEMORY, "a buffer of %zu bytes", capacity);
    if (buffer->size > 0)
        memcpy(memory, buffer->data, buffer->size);
    free(buffer->memory);
    buffer->memory = memory;
    buffer->capacity = capacity;
    return STATUS_OK;
}

/* Makes room for `extra` bytes after the end. */
static status reserve(byte_buffer *buffer, size_t extra)
{
    if (extra > SIZE_MAX / 4 || buffer->size > SIZE_MAX / 4)
        return FAIL(STATUS_NO_MEMORY, "a buffer of %zu and %zu more bytes", buffer->size, extra);
    if (room_after_end(buffer) >= extra && buffer->memory != NULL)
        return STATUS_OK;
    size_t need = buffer->size + extra, capacity = need + buffer->size / 2;
    /* Moving the bytes to the front pays only if that makes much room. */
    if (need > buffer->capacity || buffer->size > buffer->capacity / 2)
        TRY(move_to_new_memory(buffer, capacity < FIRST_BYTES ? FIRST_BYTES : capacity));
    else
        memmove(buffer->memory, buffer->data, buffer->size);
    buffer->data = buffer->memory;
    return STATUS_OK;
}

status byte_buffer_append(byte_buffer *buffer, const void *data, size_t size_bytes)
{
    if (size_bytes == 0)
        return STATUS_OK;
    TRY(reserve(buffer, size_bytes));
    memcpy(buffer->data + buffer->size, data, size_bytes);
    buffer->size += size_bytes;
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
