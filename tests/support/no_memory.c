#include "tests/support/no_memory.h"

#include "base/json_text.h"

#include <stdint.h>

/* A sanitizer would end the test. */
const char *__asan_default_options(void);
const char *__tsan_default_options(void);

const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static json_malloc_t allocate; /* that of base/json_text.c, which notes what fails */

static void *fail(size_t size_bytes)
{
    (void)size_bytes;
    return allocate(SIZE_MAX / 2);
}

void no_memory_begin(void)
{
    json_free_t release;
    json_text_watch_memory();
    json_get_alloc_funcs(&allocate, &release);
    json_set_alloc_funcs(fail, release);
}

void no_memory_end(void)
{
    json_text_watch_memory();
}
