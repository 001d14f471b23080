#include "base/executable.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_executable(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode) && access(path, X_OK) == 0;
}

/* `folder`/`name`, or `name` alone if the folder is empty, as far as it fits. */
static bool make_path(const char *folder, size_t length, const char *name,
                      char out[FILE_PATH_BYTES])
{
    size_t rest = strlen(name) + 1;
    if (length + 1 + rest > FILE_PATH_BYTES)
        return false;
    memcpy(out, folder, length);
    if (length > 0)
        out[length++] = '/';
    memcpy(out + length, name, rest);
    return true;
}

bool executable_find(const char *name, char out[FILE_PATH_BYTES])
{
    if (strchr(name, '/') != NULL)
        return make_path("", 0, name, out) && is_executable(out);
    const char *path = getenv("PATH");
    for (const char *at = path != NULL ? path : "/usr/local/bin:/usr/bin:/bin";;) {
        size_t length = strcspn(at, ":");
        bool here = length == 0; /* an empty entry is this folder */
        if (make_path(here ? "." : at, here ? 1 : length, name, out) && is_executable(out))
            return true;
        if (at[length] == '\0')
            return false;
        at += length + 1;
    }
}
