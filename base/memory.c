#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
