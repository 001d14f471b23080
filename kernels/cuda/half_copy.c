/* The 16-bit copies of parameter arenas: one per arena that begin_forward has seen. */
#include "base/memory.h"
#include "kernels/cuda/cuda_ops.h"

#include <stdlib.h>

enum { HALF_BYTES = 2 };

static cuda_half_copy *find(const cuda_state *s, const float *parameters)
{
    for (cuda_half_copy *half = s->half_copies; half != NULL; half = half->next)
        if (parameters >= half->parameters && parameters < half->parameters + half->count)
            return half;
    return NULL;
}

const void *cuda_half_weights(const device *dev, const float *parameters)
{
    if (!cuda_is_half(dev))
        return parameters;
    const cuda_half_copy *half = find(cuda_state_of(dev), parameters);
    ASSERT(half != NULL); /* begin_forward comes first */
    return (const char *)half->copy + (size_t)(parameters - half->parameters) * HALF_BYTES;
}

static status add(device *dev, const float *parameters, size_t count, cuda_half_copy **out)
{
    cuda_state *s = cuda_state_of(dev);
    cuda_half_copy *made = NULL;
    TRY(memory_alloc(sizeof *made, (void **)&made));
    *made = (cuda_half_copy){.parameters = parameters, .count = count};
    status st = cuda_alloc(dev, count * HALF_BYTES, &made->copy);
    if (st != STATUS_OK) {
        free(made);
        return st;
    }
    made->next = s->half_copies;
    s->half_copies = made;
    *out = made;
    return STATUS_OK;
}

void cuda_half_copy_drop(device *dev, const void *memory)
{
    cuda_half_copy **link = &cuda_state_of(dev)->half_copies;
    while (*link != NULL && (const void *)(*link)->parameters != memory)
        link = &(*link)->next;
    cuda_half_copy *dropped = *link;
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
    cuda_half_copy *half = find(cuda_state_of(dev), parameters);
    if (half == NULL || parameters + count > half->parameters + half->count) {
        cuda_half_copy_drop(dev, parameters);
        TRY(add(dev, parameters, count, &half));
    }
    size_t first = (size_t)(parameters - half->parameters);
    return cuda_narrow(dev, dev->precision, parameters, count, 1.0f,
                       (char *)half->copy + first * HALF_BYTES);
}
