#include "data/cache.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { LOCK_POLL_MS = 5 };

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
        close(lock); /* closing the last descriptor releases the lock */
}

status cache_draft(const char *path, file_draft *out)
{
    file_draft_clean(path);
    return file_draft_open(path, FILE_DRAFT_PRIVATE, out);
}
