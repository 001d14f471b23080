#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum {
    ALIGNMENT = 64,
    LARGE_BYTES = 256 << 10,
    HUGE_PAGE_BYTES = 2 << 20,
};

size_t memory_page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* A new block's pages come one by one, each with a fault at its first use: for a large block that
 * takes far longer than to write it. Here they come in one call, zeroed, and as huge pages if that
 * is allowed. Pages that the block had before go first. Sets *inside to the whole pages within the
 * block. false: the system does not know this, or the pages are locked. */
static bool take_pages(unsigned char *block, size_t size_bytes, unsigned char **inside, size_t *n)
{
    uintptr_t page_bytes = memory_page_bytes();
    size_t before = (page_bytes - (uintptr_t)block % page_bytes) % page_bytes;
    *inside = block + before;
    *n = (size_bytes - before) / page_bytes * page_bytes;
    if (size_bytes >= HUGE_PAGE_BYTES)
        (void)madvise(*inside, *n, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
    return madvise(*inside, *n, MADV_DONTNEED) == 0 &&
           madvise(*inside, *n, MADV_POPULATE_WRITE) == 0;
#else
    return false;
#endif
}

static void zero(unsigned char *block, size_t size_bytes)
{
    unsigned char *inside = block, *end = block + size_bytes;
    size_t n = 0;
    if (size_bytes < LARGE_BYTES || !take_pages(block, size_bytes, &inside, &n)) {
        memset(block, 0, size_bytes);
        return;
    }
    memset(block, 0, (size_t)(inside - block));
    memset(inside + n, 0, (size_t)(end - inside) - n);
}

status memory_alloc(size_t size_bytes, void **out)
{
    size_t rounded = 0;
    if (__builtin_add_overflow(size_bytes, (size_t)(2 * ALIGNMENT - 1), &rounded))
        return FAIL(STATUS_NO_MEMORY, "cannot allocate %zu bytes", size_bytes);
    rounded &= ~(size_t)(ALIGNMENT - 1);
    void *p = NULL;
    if (posix_memalign(&p, rounded < HUGE_PAGE_BYTES ? ALIGNMENT : HUGE_PAGE_BYTES, rounded) != 0)
        return FAIL(STATUS_NO_MEMORY, "cannot allocate %zu bytes", size_bytes);
    zero(p, rounded);
    *out = p;
    return STATUS_OK;
}

bool memory_product(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

void memory_stream(void *restrict out, const void *restrict in, size_t size_bytes)
{
    unsigned char *to = out;
    const unsigned char *from = in;
    size_t end = 0;
#if defined(__x86_64__)
    size_t before = -(uintptr_t)to % ALIGNMENT; /* a cache line is written as a whole */
    if (before > size_bytes)
        before = size_bytes;
    end = before + (size_bytes - before) / ALIGNMENT * ALIGNMENT;
    memcpy(to, from, before);
    for (size_t at = before; at < end; at += ALIGNMENT)
        for (size_t i = at; i < at + ALIGNMENT; i += sizeof(__m128i)) {
            __m128i data = _mm_loadu_si128((const __m128i *)(const void *)(from + i));
            _mm_stream_si128((__m128i *)(void *)(to + i), data);
        }
    _mm_sfence(); /* before any store that says that it is there */
#endif
    memcpy(to + end, from + end, size_bytes - end);
}

/* Pieces that come back. */

struct spare {
    struct spare *next;
};

void *spares_take(spares *s, size_t size_bytes)
{
    struct spare *piece = s->first;
    if (piece == NULL)
        return calloc(1, size_bytes);
    s->first = piece->next;
    return memset(piece, 0, size_bytes);
}

void spares_give(spares *s, void *piece)
{
    struct spare *given = piece;
    given->next = s->first;
    s->first = given;
}

void spares_free(spares *s)
{
    while (s->first != NULL) {
        struct spare *piece = s->first;
        s->first = piece->next;
        free(piece);
    }
}

/* Bytes that pass through. */

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
