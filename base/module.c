#include "base/module.h"

#include "base/file.h"
#include "base/host.h"
#include "base/log.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 64 };

/* A module: what to do if it is missing or does not load, and where its table is in `module`. */
typedef struct module_row {
    const char *name, *missing, *unloadable;
    size_t table;
} module_row;

static const module_row ROWS[] = {
    {"gloo", "install libgloo-dev and build again, or use the backend shm (one host)",
     "is the package libgloo0 installed?", offsetof(module, process_group)},
    {"mpi", "install libopenmpi-dev and openmpi-bin and build again, or use another backend",
     "are the packages libopenmpi3 and openmpi-bin installed?", offsetof(module, process_group)},
    {"curl", "install libcurl4-openssl-dev and build again", "is the package libcurl4 installed?",
     offsetof(module, transfer)},
    {"microhttpd", "install libmicrohttpd-dev and build again",
     "is the package libmicrohttpd12 installed?", offsetof(module, http_server)},
    {"cuda", "build with the CUDA toolkit (nvcc, cuBLAS, cuDNN, NCCL), or use --device=cpu",
     "are CUDA's libraries, cuDNN and NCCL installed?", offsetof(module, device)},
};

static const module_row *row_of(const char *name)
{
    static const module_row none = {"", "build it", "are its libraries installed?", 0};
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++)
        if (strcmp(ROWS[i].name, name) == 0)
            return &ROWS[i];
    return &none;
}

/* Where a module may be. */
typedef struct places {
    char variable[NAME_BYTES]; /* "MNIST_DDP_GLOO_MODULE" */
    const char *named;         /* the file that it names, or NULL */
    char beside[FILE_PATH_BYTES], installed[FILE_PATH_BYTES];
} places;

static void find_named(const char *name, places *out)
{
    snprintf(out->variable, NAME_BYTES, "MNIST_DDP_%.16s_MODULE", name);
    for (char *c = out->variable; *c != '\0'; c++)
        *c = (char)toupper((unsigned char)*c);
    out->named = environment_text(out->variable);
}

static status find_places(const char *name, places *out)
{
    char folder[FILE_PATH_BYTES], file[NAME_BYTES];
    ssize_t length = readlink("/proc/self/exe", folder, FILE_PATH_BYTES - 1);
    if (length < 0)
        return FAIL(STATUS_IO, "read /proc/self/exe: %s", strerror(errno));
    folder[length] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        *slash = '\0';
    snprintf(file, sizeof file, "mnist_ddp_%.16s.so", name);
    TRY(file_join(folder, file, out->beside));
    snprintf(file, sizeof file, "../lib/mnist_ddp/mnist_ddp_%.16s.so", name);
    return file_join(folder, file, out->installed);
}

static status load(const char *name, const char *path, const places *at, const module **out)
{
    const void *table;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return FAIL(STATUS_NO_MODULE, "module %s: %s (%s)", name, dlerror(),
                    row_of(name)->unloadable);
    const module *found = dlsym(handle, "mnist_ddp_module");
    if (found == NULL)
        return FAIL(STATUS_NO_MODULE, "module %s: %s is not a module of this program", name, path);
    if (found->abi_version != MODULE_ABI_VERSION)
        return FAIL(STATUS_NO_MODULE,
                    "module %s: %s is a module of version %d, this program's is %d: rebuild both",
                    name, path, found->abi_version, (int)MODULE_ABI_VERSION);
    memcpy(&table, (const char *)found + row_of(name)->table, sizeof table);
    if (table == NULL)
        return FAIL(STATUS_NO_MODULE, "module %s: %s is another module; what does %s name?", name,
                    path, at->variable);
    *out = found;
    return STATUS_OK;
}

status module_open(const char *name, const module **out)
{
    places at;
    find_named(name, &at);
    if (at.named != NULL) {
        if (dlopen(at.named, RTLD_LAZY | RTLD_NOLOAD) == NULL) /* once, not at every opening */
            LOG_I("module %s: %s, as %s says", name, at.named, at.variable);
        if (!file_exists(at.named))
            return FAIL(STATUS_NO_MODULE, "module %s: %s names %s, which does not exist", name,
                        at.variable, at.named);
        return load(name, at.named, &at, out);
    }
    TRY(find_places(name, &at));
    if (file_exists(at.beside))
        return load(name, at.beside, &at, out);
    if (file_exists(at.installed))
        return load(name, at.installed, &at, out);
    return FAIL(STATUS_NO_MODULE,
                "module %s is not there; looked for %s and %s: %s, or name it in %s", name,
                at.beside, at.installed, row_of(name)->missing, at.variable);
}

bool module_exists(const char *name)
{
    places at;
    return module_is_named(name) || (find_places(name, &at) == STATUS_OK &&
                                     (file_exists(at.beside) || file_exists(at.installed)));
}

bool module_is_named(const char *name)
{
    places at;
    find_named(name, &at);
    return at.named != NULL;
}
