#include "model/checkpoint_folder.h"

#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MIN_DIGITS = 8,
    MAX_DIGITS = 18, /* any number of that many digits fits in an int64_t */
    MAX_ASIDE = 100, /* temporary names of one step; leftovers may hold some */
    TEMPORARY_BYTES = 64,
};
static const char TEMPORARY[] = ".tmp";

status checkpoint_folder_path(const char *folder, int64_t step, char *out)
{
    char name[48];
    snprintf(name, sizeof name, "%08" PRId64, step);
    return file_join(folder, name, out);
}

/* "00000938.tmp", or "00000938.<i>.tmp". */
static void temporary_name(int64_t step, int i, char out[TEMPORARY_BYTES])
{
    if (i == 0)
        snprintf(out, TEMPORARY_BYTES, "%08" PRId64 "%s", step, TEMPORARY);
    else
        snprintf(out, TEMPORARY_BYTES, "%08" PRId64 ".%d%s", step, i, TEMPORARY);
}

static status temporary_path(const char *folder, int64_t step, int i, char *out)
{
    char name[TEMPORARY_BYTES];
    temporary_name(step, i, name);
    return file_join(folder, name, out);
}

/* Is `name` a step as we write it? */
static bool parse_step(const char *name, int64_t *step)
{
    size_t digits = strspn(name, "0123456789");
    if (digits < MIN_DIGITS || digits > MAX_DIGITS || name[digits] != '\0')
        return false;
    *step = strtoll(name, NULL, 10);
    return digits == MIN_DIGITS || name[0] != '0';
}

/* Is `name` one that temporary_name makes? Other folders must not be deleted. */
static bool is_temporary(const char *name)
{
    char ours[TEMPORARY_BYTES];
    int64_t step = 0;
    int i = 0;
    if (sscanf(name, "%18" SCNd64 ".%2d", &step, &i) < 1)
        return false;
    temporary_name(step, i, ours);
    return step >= 0 && strcmp(name, ours) == 0;
}

static int newest_first(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left < right) - (left > right);
}

status checkpoint_folder_list(const char *folder, int64_t **out, size_t *n_out)
{
    status st = STATUS_OK;
    int64_t *steps = NULL, step = 0;
    size_t n = 0, room = 0;
    DIR *dir = opendir(folder);
    if (dir == NULL && errno != ENOENT)
        return FAIL(STATUS_IO, "open folder %s: %s", folder, strerror(errno));
    while (dir != NULL && st == STATUS_OK) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            if (errno != 0)
                st = FAIL(STATUS_IO, "read folder %s: %s", folder, strerror(errno));
            break;
        }
        if (!parse_step(entry->d_name, &step))
            continue;
        if (n == room) {
            room = 2 * room + 16;
            int64_t *more = realloc(steps, sizeof *steps * room);
            if (more == NULL) {
                st = FAIL(STATUS_NO_MEMORY, "%zu names in %s", room, folder);
                break;
            }
            steps = more;
        }
        steps[n++] = step;
    }
    if (dir != NULL)
        closedir(dir);
    if (st != STATUS_OK) {
        free(steps);
        return st;
    }
    if (n > 0)
        qsort(steps, n, sizeof *steps, newest_first);
    *out = steps;
    *n_out = n;
    return STATUS_OK;
}

status checkpoint_folder_remove(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        status st = FAIL(STATUS_IO, "open folder %s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return st;
    }
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(fd, entry->d_name, 0); /* rmdir tells if one stays */
    closedir(dir);
    if (rmdir(path) != 0)
        return FAIL(STATUS_IO, "delete folder %s: %s", path, strerror(errno));
    return STATUS_OK;
}

void checkpoint_folder_clean(const char *folder)
{
    char path[FILE_PATH_BYTES];
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return;
    unlinkat(dirfd(dir), CHECKPOINT_BEST_DRAFT, 0);
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (!is_temporary(entry->d_name))
            continue;
        status st = file_join(folder, entry->d_name, path);
        if (st == STATUS_OK)
            st = checkpoint_folder_remove(path);
        if (st != STATUS_OK)
            LOG_W("a leftover stays: %s", status_text());
    }
    closedir(dir);
}

status checkpoint_folder_begin(const char *folder, int64_t step, char *temporary)
{
    for (int i = 0; i < MAX_ASIDE; i++) {
        TRY(temporary_path(folder, step, i, temporary));
        if (mkdir(temporary, 0777) == 0)
            return STATUS_OK;
        if (errno != EEXIST)
            break;
    }
    return FAIL(STATUS_IO, "make folder %s: %s", temporary, strerror(errno));
}

/* Gives a checkpoint a temporary name that nothing has; sets `aside` to it. */
static status move_aside(const char *folder, int64_t step, const char *path, char *aside)
{
    for (int i = 0; i < MAX_ASIDE; i++) {
        TRY(temporary_path(folder, step, i, aside));
        if (rename(path, aside) == 0)
            return STATUS_OK;
        if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR)
            break;
    }
    return FAIL(STATUS_IO, "rename %s to %s: %s", path, aside, strerror(errno));
}

/* Exchanges old and new in one rename if the file system can. Otherwise the old one moves aside
 * first, and a crash between the two renames leaves this step without a checkpoint. */
static status replace(const char *folder, int64_t step, const char *from, const char *to)
{
    char aside[FILE_PATH_BYTES];
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        return STATUS_OK;
    TRY(move_aside(folder, step, to, aside));
    return rename(from, to) == 0
               ? STATUS_OK
               : FAIL(STATUS_IO, "replace %s by %s: %s", to, from, strerror(errno));
}

status checkpoint_folder_commit(const char *folder, int64_t step, const char *temporary)
{
    char to[FILE_PATH_BYTES];
    TRY(checkpoint_folder_path(folder, step, to));
    if (rename(temporary, to) == 0)
        return file_sync_folder(folder);
    if (errno != ENOTEMPTY && errno != EEXIST)
        return FAIL(STATUS_IO, "rename %s to %s: %s", temporary, to, strerror(errno));
    TRY(replace(folder, step, temporary, to));
    TRY(file_sync_folder(folder));
    checkpoint_folder_clean(folder);
    return STATUS_OK;
}

status checkpoint_folder_delete(const char *folder, int64_t step)
{
    char path[FILE_PATH_BYTES], aside[FILE_PATH_BYTES];
    TRY(checkpoint_folder_path(folder, step, path));
    TRY(move_aside(folder, step, path, aside));
    return checkpoint_folder_remove(aside);
}
