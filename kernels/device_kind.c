#include "kernels/device_kind.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/module.h"
#include "kernels/ops.h"
#include "kernels/reference/reference.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_CPU_DEVICE
#include "kernels/cpu/cpu.h"
#endif

/* Kinds of devices and their modules. */
static const char CUDA[] = "cuda", ONEDNN[] = "onednn";

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

/* What the cpu device is if it has no kernels for this processor: oneDNN, else the reference
 * kernels. */
static status create_other_cpu(const device_options *options, device *dev)
{
    const device_kind *kind = NULL;
    const char *emulation = NULL;
    if (module_exists(ONEDNN)) {
        if (open_kind(ONEDNN, &kind, &emulation) == STATUS_OK &&
            kind->create(options, dev) == STATUS_OK)
            return STATUS_OK;
        LOG_W("oneDNN is not used: %s", status_text());
    }
    return reference_device_create(options, dev);
}

static status create_cpu(const device_options *options, device *dev)
{
#ifdef HAVE_CPU_DEVICE
    if (cpu_device_is_here())
        return cpu_device_create(options, dev);
#endif
    if (options->isa != NULL && strcmp(options->isa, "auto") != 0)
        return FAIL(STATUS_INVALID, "this processor has no %s", options->isa);
    if (options->precision != PRECISION_F32)
        return FAIL(STATUS_INVALID, "this processor has no kernels for %s",
                    precision_name(options->precision));
    TRY(create_other_cpu(options, dev));
    if (strcmp(dev->ops->name, "reference") == 0)
        LOG_W("the cpu device has no kernels for this processor, and there is no oneDNN: using the "
              "reference kernels, which are slow");
    else
        LOG_I("the cpu device has no kernels for this processor: using %s", dev->description);
    return STATUS_OK;
}

static const device_kind host_kinds[] = {
    {"cpu", create_cpu, NULL},
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
    if (strcmp(name, ONEDNN) == 0)
        return open_kind(ONEDNN, out, emulation);
    for (size_t i = 0; i < sizeof host_kinds / sizeof host_kinds[0]; i++)
        if (automatic || strcmp(name, host_kinds[i].name) == 0) {
            *out = &host_kinds[i];
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID,
                "there is no device '%.64s'; there are: auto, cpu, cuda, onednn, reference", name);
}

status device_title(const char *name, char out[DEVICE_TEXT_BYTES])
{
    char model[DEVICE_MODEL_BYTES] = "";
    int count = 0;
    if (strcmp(name, CUDA) == 0)
        TRY(device_count(&count, model));
    if (strcmp(name, "cpu") == 0 && strncmp(device_libraries(), "avx", 3) != 0)
        name = device_libraries();
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
#ifdef HAVE_CPU_DEVICE
    if (cpu_device_is_here())
        return cpu_device_kernels();
#endif
    static char text[DEVICE_TEXT_BYTES];
    device_options options = {.name = "cpu", .threads = 1};
    device dev = {.threads = 1};
    if (create_other_cpu(&options, &dev) != STATUS_OK)
        return "reference kernels";
    snprintf(text, sizeof text, "%s", dev.description);
    dev.ops->destroy(&dev);
    return text;
}
