#include "model/checkpoint_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_DIGITS = 18 }; /* any number of so many digits fits */
static const char TEMPORARY[] = ".tmp";
static const char REPLACED[] = ".old.tmp";

status checkpoint_folder_path(const char *folder, int64_t step, const char *suffix, char *out)
{
    char name[48];
    snprintf(name, sizeof name, "%08" PRId64 "%s", step, suffix);
    return file_join(folder, name, out);
}

/* Is `name` a step as we write it, followed by `suffix`? */
static bool parse_name(const char *name, const char *suffix, int64_t *step)
{
    size_t digits = strspn(name, "0123456789");
    if (digits < 8 || digits > MAX_DIGITS || strcmp(name + digits, suffix) != 0)
        return false;
    *step = strtoll(name, NULL, 10);
    return digits == 8 || name[0] != '0';
}

static int newest_first(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left < right) - (left > right);
}

/* The steps behind all names that end in `suffix`. */
static status list_names(const char *folder, const char *suffix, int64_t **out, size_t *n_out)
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
        if (!parse_name(entry->d_name, suffix, &step))
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

status checkpoint_folder_list(const char *folder, int64_t **steps, size_t *n)
{
    return list_names(folder, "", steps, n);
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

static status clean_suffix(const char *folder, const char *suffix)
{
    int64_t *steps = NULL;
    size_t n = 0;
    char path[FILE_PATH_BYTES];
    TRY(list_names(folder, suffix, &steps, &n));
    status st = STATUS_OK;
    for (size_t i = 0; i < n && st == STATUS_OK; i++) {
        st = checkpoint_folder_path(folder, steps[i], suffix, path);
        if (st == STATUS_OK)
            st = checkpoint_folder_remove(path);
    }
    free(steps);
    return st;
}

status checkpoint_folder_clean(const char *folder)
{
    TRY(clean_suffix(folder, TEMPORARY));
    return clean_suffix(folder, REPLACED);
}

/* Swaps old and new in one step where the file system can; else the old one moves aside first, and
 * a crash between the two renames leaves this step without a checkpoint. */
static status replace(const char *folder, int64_t step, const char *from, const char *to)
{
    char aside[FILE_PATH_BYTES];
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        return STATUS_OK;
    TRY(checkpoint_folder_path(folder, step, REPLACED, aside));
    if (rename(to, aside) != 0 || rename(from, to) != 0)
        return FAIL(STATUS_IO, "replace %s by %s: %s", to, from, strerror(errno));
    return STATUS_OK;
}

status checkpoint_folder_commit(const char *folder, int64_t step)
{
    char from[FILE_PATH_BYTES], to[FILE_PATH_BYTES];
    TRY(checkpoint_folder_path(folder, step, TEMPORARY, from));
    TRY(checkpoint_folder_path(folder, step, "", to));
    if (rename(from, to) == 0)
        return file_sync_folder(folder);
    if (errno != ENOTEMPTY && errno != EEXIST)
        return FAIL(STATUS_IO, "rename %s to %s: %s", from, to, strerror(errno));
    TRY(replace(folder, step, from, to));
    TRY(file_sync_folder(folder));
    return checkpoint_folder_clean(folder);
}

status checkpoint_folder_delete(const char *folder, int64_t step)
{
    char path[FILE_PATH_BYTES], doomed[FILE_PATH_BYTES];
    TRY(checkpoint_folder_path(folder, step, "", path));
    TRY(checkpoint_folder_path(folder, step, TEMPORARY, doomed));
    if (rename(path, doomed) != 0)
        return FAIL(STATUS_IO, "rename %s to %s: %s", path, doomed, strerror(errno));
    return checkpoint_folder_remove(doomed);
}
