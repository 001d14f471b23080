#include "kernels/cuda/shadow.h"

#include "base/memory.h"
#include "kernels/cuda/cuda_ops.h"

#include <stdlib.h>

enum { HALF_BYTES = 2 };

static cuda_shadow *find(const cuda_state *s, const float *parameters)
{
    for (cuda_shadow *shadow = s->shadows; shadow != NULL; shadow = shadow->next)
        if (parameters >= shadow->parameters && parameters < shadow->parameters + shadow->count)
            return shadow;
    return NULL;
}

const void *cuda_shadow_of(const device *dev, const float *parameters)
{
    if (!cuda_is_half(dev))
        return parameters;
    const cuda_shadow *shadow = find(cuda_state_of(dev), parameters);
    ASSERT(shadow != NULL); /* begin_forward comes first */
    return (const char *)shadow->copy + (size_t)(parameters - shadow->parameters) * HALF_BYTES;
}

static status add(device *dev, const float *parameters, size_t count, cuda_shadow **out)
{
    cuda_state *s = cuda_state_of(dev);
    cuda_shadow *made = NULL;
    TRY(memory_alloc(sizeof *made, (void **)&made));
    *made = (cuda_shadow){.parameters = parameters, .count = count};
    status st = cuda_alloc(dev, count * HALF_BYTES, &made->copy);
    if (st != STATUS_OK) {
        free(made);
        return st;
    }
    made->next = s->shadows;
    s->shadows = made;
    *out = made;
    return STATUS_OK;
}

void cuda_shadow_drop(device *dev, const void *memory)
{
    cuda_shadow **link = &cuda_state_of(dev)->shadows;
    while (*link != NULL && (const void *)(*link)->parameters != memory)
        link = &(*link)->next;
    cuda_shadow *dropped = *link;
    if (dropped == NULL)
        return;
    *link = dropped->next;
    cuda_free(dev, dropped->copy);
    free(dropped);
}

status cuda_begin_forward(device *dev, const float *parameters, size_t count)
{
    if (!cuda_is_half(dev) || count == 0)
        return STATUS_OK;
    cuda_shadow *shadow = find(cuda_state_of(dev), parameters);
    if (shadow == NULL || parameters + count > shadow->parameters + shadow->count) {
        cuda_shadow_drop(dev, parameters);
        TRY(add(dev, parameters, count, &shadow));
    }
    size_t first = (size_t)(parameters - shadow->parameters);
    return cuda_cast(dev, parameters, count, (char *)shadow->copy + first * HALF_BYTES);
}
