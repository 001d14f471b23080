#include "kernels/device_kind.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/module.h"
#include "kernels/host.h"
#include "kernels/ops.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A kind of devices, and its module. */
static const char CUDA[] = "cuda";

/* The kind that a module has. *emulation as in base/module.h. */
static status open_kind(const char *name, const device_kind **out, const char **emulation)
{
    const module *opened = NULL;
    TRY(module_open(name, &opened));
    if (opened->device == NULL)
        return FAIL(STATUS_INVALID, "the %s module has no device", name);
    *out = opened->device;
    *emulation = opened->emulation;
    return STATUS_OK;
}

static const device_kind host_kinds[] = {
    {"cpu", cpu_device_create, NULL},
    {"reference", reference_device_create, NULL},
};

/* NVIDIA's driver library: without it no module needs to be opened. */
static bool driver_is_there(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver == NULL)
        return false;
    dlclose(driver);
    return true;
}

status device_count(int *out, char *model)
{
    const device_kind *kind = NULL;
    const char *emulation = NULL;
    TRY(open_kind(CUDA, &kind, &emulation));
    return kind->count(out, model);
}

bool device_auto_is_cuda(void)
{
    int count = 0;
    if (!module_is_named(CUDA) && !(module_exists(CUDA) && driver_is_there()))
        return false;
    if (device_count(&count, NULL) == STATUS_OK)
        return count > 0;
    LOG_I("no GPU is used: %s", status_text());
    return false;
}

static status find(const char *name, const device_kind **out, const char **emulation)
{
    bool automatic = strcmp(name, "auto") == 0;
    if (strcmp(name, CUDA) == 0 || (automatic && device_auto_is_cuda()))
        return open_kind(CUDA, out, emulation);
    for (size_t i = 0; i < sizeof host_kinds / sizeof host_kinds[0]; i++)
        if (automatic || strcmp(name, host_kinds[i].name) == 0) {
            *out = &host_kinds[i];
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID, "there is no device '%.64s'; there are: auto, cpu, cuda, reference",
                name);
}

status device_title(const device_options *options, char out[DEVICE_TEXT_BYTES])
{
    char model[DEVICE_MODEL_BYTES] = "";
    int count = 0;
    const char *name = options->name, *kernels = NULL;
    if (strcmp(name, CUDA) == 0)
        TRY(device_count(&count, model));
    if (strcmp(name, "cpu") == 0)
        kernels = cpu_device_kernels(options->isa);
    /* AVX2's have the same bits, but another order of weights and activations in memory. */
    if (kernels != NULL && strncmp(kernels, "avx512", 6) != 0)
        name = kernels;
    snprintf(out, DEVICE_TEXT_BYTES, "%s%s%s", name, model[0] != '\0' ? " " : "", model);
    return STATUS_OK;
}

status device_create(const device_options *options, device **out)
{
    ASSERT(options->threads >= 1);
    const device_kind *kind = NULL;
    const char *emulation = NULL;
    TRY(find(options->name, &kind, &emulation));
    bool is_cuda = strcmp(kind->name, CUDA) == 0, is_cpu = strcmp(kind->name, "cpu") == 0;
    precision how = options->precision;
    if (how != PRECISION_F32 && !is_cuda && !(is_cpu && how == PRECISION_BF16))
        return FAIL(STATUS_INVALID, "%s is for --device=cuda%s; the %s device computes in f32%s",
                    precision_name(how), how == PRECISION_BF16 ? " or cpu" : "", kind->name,
                    is_cpu ? " or bf16" : "");
    device *dev = NULL;
    TRY(memory_alloc(sizeof *dev, (void **)&dev));
    dev->threads = options->threads;
    dev->precision = how;
    dev->element_bytes = is_cuda && (how == PRECISION_BF16 || how == PRECISION_F16) ? 2 : 4;
    dev->emulation = emulation;
    status st = kind->create(options, dev);
    if (st != STATUS_OK) {
        free(dev);
        return st;
    }
    *out = dev;
    return STATUS_OK;
}

const char *device_libraries(void)
{
    return cpu_device_kernels(NULL);
}
