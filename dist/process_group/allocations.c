#include "dist/process_group/allocations.h"

#include "base/memory.h"

#include <stdlib.h>

typedef struct allocation {
    struct allocation *next;
    void *memory;
} allocation;

status allocations_add(allocations *list, size_t size_bytes, void **out)
{
    allocation *a = calloc(1, sizeof *a);
    if (a == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu bytes", sizeof *a);
    status st = memory_alloc(size_bytes, &a->memory);
    if (st != STATUS_OK) {
        free(a);
        return st;
    }
    a->next = list->first;
    list->first = a;
    *out = a->memory;
    return STATUS_OK;
}

void allocations_free(allocations *list)
{
    while (list->first != NULL) {
        allocation *a = list->first;
        list->first = a->next;
        free(a->memory);
        free(a);
    }
}
