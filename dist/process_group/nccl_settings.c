#include "dist/process_group/nccl_settings.h"

#include "base/host.h"
#include "base/module.h"
#include "base/text.h"
#include "dist/collective/process_group_ops.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, LINE_BYTES = 2048, WORDS_BYTES = 256 };

static const char WITHOUT_NVLS[] = "^NVLS,NVLSTree";

/* Whether a line of the file is "NAME=...", as NCCL reads it. */
static bool is_set_in(const char *path, const char *name)
{
    char line[LINE_BYTES];
    size_t length = strlen(name);
    bool found = false;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    while (!found && fgets(line, sizeof line, file) != NULL)
        found = strncmp(line, name, length) == 0 && line[length] == '=';
    fclose(file);
    return found;
}

static bool is_set(const char *name)
{
    char path[PATH_BYTES] = "";
    const char *own = environment_text("NCCL_CONF_FILE");
    const struct passwd *user = getpwuid(getuid());
    if (own != NULL)
        snprintf(path, sizeof path, "%s", own);
    else if (user != NULL && user->pw_dir != NULL)
        snprintf(path, sizeof path, "%s/.nccl.conf", user->pw_dir);
    return getenv(name) != NULL || is_set_in(path, name) || is_set_in("/etc/nccl.conf", name);
}

static status set(const char *name, const char *value)
{
    if (is_set(name) || setenv(name, value, 1) == 0)
        return STATUS_OK;
    return FAIL(STATUS_NO_MEMORY, "set %s: %s", name, strerror(errno));
}

/* NCCL truncates the file that it opens. So if stderr is a file, NCCL gets another one beside it. A
 * % in the name begins one of NCCL's patterns. */
static void name_log(char *out, size_t size_bytes)
{
    struct stat about;
    char path[PATH_BYTES / 2];
    size_t used = 0;
    snprintf(out, size_bytes, "/dev/stderr");
    if (fstat(STDERR_FILENO, &about) != 0 || !S_ISREG(about.st_mode))
        return;
    ssize_t length = readlink("/proc/self/fd/2", path, sizeof path - 1);
    if (length < 0)
        return;
    path[length] = '\0';
    for (const char *c = path; *c != '\0' && used + 2 < size_bytes; c++) {
        out[used++] = *c;
        if (*c == '%')
            out[used++] = '%';
    }
    snprintf(out + used, size_bytes - used, ".nccl.%%p");
}

status nccl_settings_apply(bool nvls)
{
    char log[PATH_BYTES + 16];
    if (!nvls)
        TRY(set("NCCL_ALGO", WITHOUT_NVLS));
    if (!is_set("NCCL_DEBUG"))
        return STATUS_OK;
    name_log(log, sizeof log);
    return set("NCCL_DEBUG_FILE", log);
}

static bool has_word(const char *list, const char *word)
{
    size_t length;
    for (const char *one; (one = comma_list_next(&list, &length)) != NULL;)
        if (length == strlen(word) && strncasecmp(one, word, length) == 0)
            return true;
    return false;
}

nccl_nvls nccl_settings_nvls(void)
{
    const char *enable = getenv("NCCL_NVLS_ENABLE"), *algo = environment_text("NCCL_ALGO");
    if (enable != NULL && strcmp(enable, "0") == 0)
        return NCCL_NVLS_OFF;
    if (algo == NULL)
        return NCCL_NVLS_ALLOWED;
    if (strpbrk(algo, ":;") != NULL || strlen(algo) >= WORDS_BYTES)
        return NCCL_NVLS_UNKNOWN; /* lists by function */
    bool excludes = algo[0] == '^';
    const char *list = algo + (excludes ? 1 : 0);
    bool nvls = has_word(list, "NVLS"), tree = has_word(list, "NVLSTree");
    if (nvls != tree)
        return NCCL_NVLS_UNKNOWN; /* it depends on the number of nodes */
    return nvls == excludes ? NCCL_NVLS_OFF : NCCL_NVLS_ALLOWED;
}

void nccl_settings_version(char out[NCCL_VERSION_BYTES])
{
    const module *cuda = NULL;
    out[0] = '\0';
    if (module_open("cuda", &cuda) == STATUS_OK && cuda->process_group != NULL &&
        cuda->process_group->version != NULL)
        cuda->process_group->version(out, NCCL_VERSION_BYTES);
}
