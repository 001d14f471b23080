#include "data/cache.h"

#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOCK_POLL_MS = 5 };

static const char TEMPORARY_MARK[] = ".tmp-";

static void folder_add(cache_folders *folders, const char *variable, const char *below)
{
    const char *base = getenv(variable);
    if (base == NULL || base[0] != '/') /* the XDG rules: a relative path is no path */
        return;
    if (file_join(base, below, folders->path[folders->count]) == STATUS_OK)
        folders->count++;
}

void cache_folders_find(cache_folders *out)
{
    out->count = 0;
    folder_add(out, "XDG_CACHE_HOME", "mnist_ddp");
    folder_add(out, "HOME", ".cache/mnist_ddp");
}

status cache_folder_make(const char *name, char *out)
{
    cache_folders folders;
    cache_folders_find(&folders);
    status st = FAIL(STATUS_IO, "no cache folder: neither $XDG_CACHE_HOME nor $HOME is set");
    for (int i = 0; i < folders.count; i++) {
        st = file_join(folders.path[i], name, out);
        if (st == STATUS_OK)
            st = file_make_folders(out);
        if (st == STATUS_OK && euidaccess(out, W_OK | X_OK) != 0)
            st = FAIL(STATUS_IO, "write in %s: %s", out, strerror(errno));
        if (st == STATUS_OK)
            return STATUS_OK;
    }
    return st;
}

status cache_lock(const char *folder, int timeout_ms, int *lock)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(folder, "lock", path));
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return FAIL(STATUS_IO, "open %s: %s", path, strerror(errno));
    int64_t deadline = clock_deadline_ns(timeout_ms);
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        status st = STATUS_OK;
        if (errno != EWOULDBLOCK && errno != EINTR)
            st = FAIL(STATUS_IO, "lock %s: %s", path, strerror(errno));
        else if (clock_passed(deadline))
            st = FAIL(STATUS_TIMEOUT, "%s is held by another process since over %d ms", path,
                      timeout_ms);
        if (st != STATUS_OK) {
            close(fd);
            return st;
        }
        clock_sleep_ms(LOCK_POLL_MS);
    }
    *lock = fd;
    return STATUS_OK;
}

void cache_unlock(int lock)
{
    if (lock >= 0)
        close(lock); /* the last descriptor of the open file: the lock goes with it */
}

/* Splits a path with a slash into folder (a copy) and name (inside `path`). */
static const char *path_split(const char *path, char *folder)
{
    const char *slash = strrchr(path, '/');
    ASSERT(slash != NULL && slash > path && slash - path < FILE_PATH_BYTES);
    memcpy(folder, path, (size_t)(slash - path));
    folder[slash - path] = '\0';
    return slash + 1;
}

static void remove_leftovers(const char *path)
{
    char folder[FILE_PATH_BYTES], leftover[FILE_PATH_BYTES];
    const char *name = path_split(path, folder);
    size_t length = strlen(name);
    DIR *listing = opendir(folder);
    if (listing == NULL)
        return;
    for (struct dirent *found = readdir(listing); found != NULL; found = readdir(listing)) {
        bool ours = strncmp(found->d_name, name, length) == 0 &&
                    strncmp(found->d_name + length, TEMPORARY_MARK, strlen(TEMPORARY_MARK)) == 0;
        if (ours && file_join(folder, found->d_name, leftover) == STATUS_OK)
            unlink(leftover);
    }
    closedir(listing);
}

status cache_entry_begin(const char *path, cache_entry *out)
{
    cache_entry entry = {.fd = -1};
    int length = snprintf(entry.path, sizeof entry.path, "%s", path);
    if (length < 0 || (size_t)length >= sizeof entry.path)
        return FAIL(STATUS_INVALID, "path too long: %.64s...", path);
    length = snprintf(entry.temporary, sizeof entry.temporary, "%s%sXXXXXX", path, TEMPORARY_MARK);
    if (length < 0 || (size_t)length >= sizeof entry.temporary)
        return FAIL(STATUS_INVALID, "path too long: %.64s...", path);
    remove_leftovers(path);
    /* A new name each time: where a file system's locks do not reach other hosts, two writers still
     * do not share a file. */
    entry.fd = mkostemp(entry.temporary, O_CLOEXEC);
    if (entry.fd < 0)
        return FAIL(STATUS_IO, "create %s: %s", entry.temporary, strerror(errno));
    *out = entry;
    return STATUS_OK;
}

void cache_entry_abort(cache_entry *entry)
{
    if (entry->fd < 0)
        return;
    close(entry->fd);
    unlink(entry->temporary);
    entry->fd = -1;
}

status cache_entry_commit(cache_entry *entry)
{
    status st = STATUS_OK;
    if (fsync(entry->fd) != 0)
        st = FAIL(STATUS_IO, "sync %s: %s", entry->temporary, strerror(errno));
    else if (rename(entry->temporary, entry->path) != 0)
        st = FAIL(STATUS_IO, "rename %s to %s: %s", entry->temporary, entry->path, strerror(errno));
    if (st != STATUS_OK) {
        cache_entry_abort(entry);
        return st;
    }
    close(entry->fd);
    entry->fd = -1;
    return STATUS_OK;
}

status cache_write(int fd, const char *name, const void *data, size_t size_bytes)
{
    const char *bytes = data;
    for (size_t done = 0; done < size_bytes;) {
        ssize_t n = write(fd, bytes + done, size_bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return FAIL(STATUS_IO, "write %s: %s", name, strerror(errno));
        done += (size_t)n;
    }
    return STATUS_OK;
}
