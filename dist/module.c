#include "dist/module.h"

#include "base/file.h"
#include "base/log.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 64 };

static status executable_folder(char *folder)
{
    ssize_t length = readlink("/proc/self/exe", folder, FILE_PATH_BYTES - 1);
    if (length < 0)
        return FAIL(STATUS_IO, "read /proc/self/exe: %s", strerror(errno));
    folder[length] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        *slash = '\0';
    return STATUS_OK;
}

static status load(const char *name, const char *path, const process_group_ops **out)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return FAIL(STATUS_IO, "backend %s: %s (is the package lib%s0 installed?)", name, dlerror(),
                    name);
    const backend_module *module = dlsym(handle, "mnist_ddp_module");
    if (module == NULL || module->process_group == NULL)
        return FAIL(STATUS_INVALID, "backend %s: %s is no module of this program", name, path);
    if (module->abi_version != MODULE_ABI_VERSION)
        return FAIL(STATUS_INVALID,
                    "backend %s: %s is a module of version %d, this program's is %d: rebuild both",
                    name, path, module->abi_version, (int)MODULE_ABI_VERSION);
    *out = module->process_group;
    return STATUS_OK;
}

/* "gloo" -> "MNIST_DDP_GLOO_MODULE". */
static void variable_name(const char *name, char *variable)
{
    snprintf(variable, NAME_BYTES, "MNIST_DDP_%.16s_MODULE", name);
    for (char *c = variable; *c != '\0'; c++)
        *c = (char)toupper((unsigned char)*c);
}

status module_open(const char *name, const process_group_ops **out)
{
    char variable[NAME_BYTES], file[NAME_BYTES];
    char folder[FILE_PATH_BYTES], beside[FILE_PATH_BYTES], installed[FILE_PATH_BYTES];
    variable_name(name, variable);
    const char *named = getenv(variable);
    if (named != NULL && named[0] != '\0') {
        LOG_I("backend %s: module %s, as %s says", name, named, variable);
        if (!file_exists(named))
            return FAIL(STATUS_INVALID, "backend %s: %s names %s, which is not there", name,
                        variable, named);
        return load(name, named, out);
    }
    TRY(executable_folder(folder));
    snprintf(file, sizeof file, "mnist_ddp_%.16s.so", name);
    TRY(file_join(folder, file, beside));
    if (file_exists(beside))
        return load(name, beside, out);
    snprintf(file, sizeof file, "../lib/mnist_ddp/mnist_ddp_%.16s.so", name);
    TRY(file_join(folder, file, installed));
    if (file_exists(installed))
        return load(name, installed, out);
    return FAIL(STATUS_INVALID,
                "backend %s: its module is not there; looked for %s and %s. Install lib%s-dev and "
                "build again, name the file in %s, or use the backend shm (one host)",
                name, beside, installed, name, variable);
}
