#include "kernels/device.h"

#include "base/memory.h"
#include "kernels/ops.h"
#include "kernels/reference/reference.h"

#include <stdlib.h>
#include <string.h>

#ifdef HAVE_ONEDNN
#include "kernels/cpu/cpu.h"
#endif

typedef struct device_kind {
    const char *name;
    status (*create)(int threads, device *dev);
} device_kind;

static const device_kind kinds[] = {
#ifdef HAVE_ONEDNN
    {"cpu", cpu_device_create},
#else
    {"cpu", reference_device_create},
#endif
    {"reference", reference_device_create},
};

static const device_kind *find(const char *name)
{
    if (strcmp(name, "auto") == 0)
        return &kinds[0];
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(name, kinds[i].name) == 0)
            return &kinds[i];
    return NULL;
}

status device_create(const char *name, int threads, device **out)
{
    ASSERT(threads >= 1);
    const device_kind *kind = find(name);
    if (kind == NULL)
        return FAIL(STATUS_INVALID, "no device '%s' in this build; there are: auto, cpu, reference",
                    name);
    device *dev = NULL;
    TRY(memory_alloc(sizeof *dev, (void **)&dev));
    dev->threads = threads;
    status st = kind->create(threads, dev);
    if (st != STATUS_OK) {
        free(dev);
        return st;
    }
    *out = dev;
    return STATUS_OK;
}

const char *device_libraries(void)
{
#ifdef HAVE_ONEDNN
    return cpu_device_libraries();
#else
    return "reference kernels";
#endif
}

void device_destroy(device *dev)
{
    if (dev == NULL)
        return;
    dev->ops->destroy(dev);
    free(dev);
}
