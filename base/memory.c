#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

status memory_alloc(size_t size_bytes, void **out)
{
    size_t rounded = 0;
    if (__builtin_add_overflow(size_bytes, (size_t)(2 * ALIGNMENT - 1), &rounded))
        return FAIL(STATUS_NO_MEMORY, "cannot allocate %zu bytes", size_bytes);
    rounded &= ~(size_t)(ALIGNMENT - 1);
    void *p = aligned_alloc(ALIGNMENT, rounded);
    if (p == NULL)
        return FAIL(STATUS_NO_MEMORY, "cannot allocate %zu bytes", size_bytes);
    memset(p, 0, rounded);
    *out = p;
    return STATUS_OK;
}

bool memory_product(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
