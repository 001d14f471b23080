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
 * takes far longer than to write it. Here they come in one call, and as huge pages if that is
 * allowed. Only advice: a system that knows nothing of it does it page by page. */
static void take_pages(unsigned char *block, size_t size_bytes)
{
    uintptr_t page_bytes = memory_page_bytes();
    uintptr_t begin = ((uintptr_t)block + page_bytes - 1) / page_bytes * page_bytes;
    size_t inside = ((uintptr_t)block + size_bytes - begin) / page_bytes * page_bytes;
    if (size_bytes >= HUGE_PAGE_BYTES)
        (void)madvise((void *)begin, inside, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
    (void)madvise((void *)begin, inside, MADV_POPULATE_WRITE);
#endif
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
    if (rounded >= LARGE_BYTES)
        take_pages(p, rounded);
    memset(p, 0, rounded);
    *out = p;
    return STATUS_OK;
}

bool memory_product(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

#if defined(__x86_64__)

void memory_stream(void *restrict out, const void *restrict in, size_t size_bytes)
{
    unsigned char *to = out;
    const unsigned char *from = in;
    size_t before = -(uintptr_t)to % ALIGNMENT; /* a cache line is written as a whole */
    if (before > size_bytes)
        before = size_bytes;
    size_t end = before + (size_bytes - before) / ALIGNMENT * ALIGNMENT;
    memcpy(to, from, before);
    for (size_t at = before; at < end; at += ALIGNMENT)
        for (size_t i = at; i < at + ALIGNMENT; i += sizeof(__m128i)) {
            __m128i data = _mm_loadu_si128((const __m128i *)(const void *)(from + i));
            _mm_stream_si128((__m128i *)(void *)(to + i), data);
        }
    memcpy(to + end, from + end, size_bytes - end);
    _mm_sfence(); /* before any store that says that it is there */
}

#else

void memory_stream(void *restrict out, const void *restrict in, size_t size_bytes)
{
    memcpy(out, in, size_bytes);
}

#endif
